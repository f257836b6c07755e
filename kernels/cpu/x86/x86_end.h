// SPDX-License-Identifier: Apache-2.0
// Ends what x86_avx2_begin.h or x86_avx512_begin.h began.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
