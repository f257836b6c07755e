// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/checksum.h"

// Last: what follows is compiled for AVX2.
#include "kernels/cpu/x86/x86_avx2_begin.h"

namespace nanhunt::kernels {
namespace {

__m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
__m256i product(__m256i keyed) { return _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)); }

void stripes_avx2(const unsigned char* data, std::size_t stripes, ChecksumLanes& lanes) {
  const __m256i step = _mm256_set1_epi64x(static_cast<long long>(kChecksumStep));
  __m256i key0 = load(kChecksumKeys), key1 = load(kChecksumKeys + 4);
  __m256i sum0 = load(lanes.sum), sum1 = load(lanes.sum + 4);
  __m256i product0 = load(lanes.product), product1 = load(lanes.product + 4);
  for (std::size_t s = 0; s < stripes; ++s, data += 64) {
    const __m256i word0 = load(data), word1 = load(data + 32);
    sum0 = _mm256_add_epi64(sum0, word0);
    sum1 = _mm256_add_epi64(sum1, word1);
    product0 = _mm256_add_epi64(product0, product(_mm256_xor_si256(word0, key0)));
    product1 = _mm256_add_epi64(product1, product(_mm256_xor_si256(word1, key1)));
    key0 = _mm256_add_epi64(key0, step);
    key1 = _mm256_add_epi64(key1, step);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.sum), sum0);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.sum + 4), sum1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.product), product0);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.product + 4), product1);
}

}  // namespace

ChecksumStripes checksum_stripes_avx2() { return stripes_avx2; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
