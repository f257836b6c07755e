// SPDX-License-Identifier: Apache-2.0
// Not guarded: functions defined between this and x86_end.h are compiled for AVX2. Include every other header
// before it. A pragma, not a compiler flag for the file: inline functions of the standard library must stay
// code for every CPU, for the linker may keep this file's copy of them.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
