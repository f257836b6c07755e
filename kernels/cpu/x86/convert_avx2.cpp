// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/convert_paths.h"
#include "nanhunt/dtype.h"

// Last: what follows is compiled for AVX2.
#include "kernels/cpu/x86/x86_avx2_begin.h"

namespace nanhunt::kernels {
namespace {

__m128i load8(const std::uint16_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
void store8(std::uint16_t* at, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(at), v); }

void f16_to_f32_loop(const std::uint16_t* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(load8(from + i)));
  for (; i < count; ++i) to[i] = f16_to_f32(from[i]);
}

void f32_to_f16_loop(const float* from, std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    store8(to + i, _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  for (; i < count; ++i) to[i] = f32_to_f16(from[i]);
}

void bf16_to_f32_loop(const std::uint16_t* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load8(from + i)), 16);
    _mm256_storeu_ps(to + i, _mm256_castsi256_ps(bits));
  }
  for (; i < count; ++i) to[i] = bf16_to_f32(from[i]);
}

// Integer arithmetic as in f32_to_bf16: no mode of the floating point unit matters.
__m256i round8(const float* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
}

void f32_to_bf16_loop(const float* from, std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i packed = _mm256_packus_epi32(round8(from + i), round8(from + i + 8));  // by 128-bit halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_permute4x64_epi64(packed, 0xD8));
  }
  for (; i < count; ++i) to[i] = f32_to_bf16(from[i]);
}

constexpr ConvertPath kPath = {f16_to_f32_loop, f32_to_f16_loop, bf16_to_f32_loop, f32_to_bf16_loop};

}  // namespace

const ConvertPath* convert_path_avx2() { return &kPath; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
