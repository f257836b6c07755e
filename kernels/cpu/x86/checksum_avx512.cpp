// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/checksum.h"

// Last: what follows is compiled for AVX-512.
#include "kernels/cpu/x86/x86_avx512_begin.h"

namespace nanhunt::kernels {
namespace {

void stripes_avx512(const unsigned char* data, std::size_t stripes, ChecksumLanes& lanes) {
  const __m512i step = _mm512_set1_epi64(static_cast<long long>(kChecksumStep));
  __m512i key = _mm512_loadu_si512(kChecksumKeys);
  __m512i sum = _mm512_loadu_si512(lanes.sum), product = _mm512_loadu_si512(lanes.product);
  for (std::size_t s = 0; s < stripes; ++s, data += 64) {
    const __m512i word = _mm512_loadu_si512(data);
    const __m512i keyed = _mm512_xor_si512(word, key);
    sum = _mm512_add_epi64(sum, word);
    product = _mm512_add_epi64(product, _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
    key = _mm512_add_epi64(key, step);
  }
  _mm512_storeu_si512(lanes.sum, sum);
  _mm512_storeu_si512(lanes.product, product);
}

}  // namespace

ChecksumStripes checksum_stripes_avx512() { return stripes_avx512; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
