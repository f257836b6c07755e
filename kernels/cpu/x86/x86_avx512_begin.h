// SPDX-License-Identifier: Apache-2.0
// As x86_avx2_begin.h, for AVX-512.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512cd"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512cd,prefer-vector-width=512")
#endif
