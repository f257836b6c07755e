// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/convert_paths.h"
#include "nanhunt/dtype.h"

// Last: what follows is compiled for AVX-512.
#include "kernels/cpu/x86/x86_avx512_begin.h"

namespace nanhunt::kernels {
namespace {

constexpr std::size_t kLanes = 16;
constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// Lanes of a last, partial vector.
__mmask16 first(std::size_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

void f16_to_f32_loop(const std::uint16_t* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  }
  if (i < count) {
    const __mmask16 rest = first(count - i);
    _mm512_mask_storeu_ps(to + i, rest, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, from + i)));
  }
}

void f32_to_f16_loop(const float* from, std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtps_ph(_mm512_loadu_ps(from + i), kNearestEven));
  }
  if (i < count) {
    const __mmask16 rest = first(count - i);
    _mm256_mask_storeu_epi16(to + i, rest, _mm512_cvtps_ph(_mm512_maskz_loadu_ps(rest, from + i), kNearestEven));
  }
}

void bf16_to_f32_loop(const std::uint16_t* from, float* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_si512(to + i, _mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  }
  if (i < count) {
    const __mmask16 rest = first(count - i);
    const __m256i codes = _mm256_maskz_loadu_epi16(rest, from + i);
    _mm512_mask_storeu_epi32(to + i, rest, _mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  }
}

// Integer arithmetic as in f32_to_bf16: no mode of the floating point unit matters.
__m256i round16(__m512i bits) {
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __mmask16 is_nan = _mm512_cmpgt_epu32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i rounded = _mm512_srli_epi32(sum, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40)));
}

void f32_to_bf16_loop(const float* from, std::uint16_t* to, std::size_t count) {
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), round16(_mm512_loadu_si512(from + i)));
  }
  if (i < count) {
    const __mmask16 rest = first(count - i);
    _mm256_mask_storeu_epi16(to + i, rest, round16(_mm512_maskz_loadu_epi32(rest, from + i)));
  }
}

constexpr ConvertPath kPath = {f16_to_f32_loop, f32_to_f16_loop, bf16_to_f32_loop, f32_to_bf16_loop};

}  // namespace

const ConvertPath* convert_path_avx512() { return &kPath; }

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
