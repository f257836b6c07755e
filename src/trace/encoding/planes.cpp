// SPDX-License-Identifier: Apache-2.0
// Eight registers hold sixteen numbers (AVX2: twice that, one half per lane): 128 bytes, whose addresses have 7 bits.
// Interleaving register j with register j + 4, for all j, rotates those bits by one to the left. Four rounds turn
// numbers of eight bytes into planes of sixteen, three more turn them back.
#include "src/trace/encoding/planes.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace nanhunt::trace {
namespace {

#if defined(__x86_64__)

// All return how many numbers they did: all but the last few.

std::size_t split_sse2(const std::uint64_t* values, std::size_t n, const PlaneOutputs& planes) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m128i v[8], w[8];
    for (std::size_t k = 0; k < 8; ++k) v[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i + 2 * k));
    for (int round = 0; round < 4; ++round) {
      for (std::size_t j = 0; j < 4; ++j) {
        w[2 * j] = _mm_unpacklo_epi8(v[j], v[j + 4]);
        w[2 * j + 1] = _mm_unpackhi_epi8(v[j], v[j + 4]);
      }
      std::copy(w, w + 8, v);
    }
    for (std::size_t k = 0; k < 8; ++k) {
      if (planes[k] != nullptr) _mm_storeu_si128(reinterpret_cast<__m128i*>(planes[k] + i), v[k]);
    }
  }
  return i;
}

std::size_t join_sse2(std::uint64_t* values, std::size_t n, const PlaneInputs& planes, std::uint64_t constants) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m128i v[8], w[8];
    for (std::size_t k = 0; k < 8; ++k) {
      v[k] = planes[k] != nullptr ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(planes[k] + i))
                                  : _mm_set1_epi8(static_cast<char>((constants >> (8 * k)) & 0xffu));
    }
    for (int round = 0; round < 3; ++round) {
      for (std::size_t j = 0; j < 4; ++j) {
        w[2 * j] = _mm_unpacklo_epi8(v[j], v[j + 4]);
        w[2 * j + 1] = _mm_unpackhi_epi8(v[j], v[j + 4]);
      }
      std::copy(w, w + 8, v);
    }
    for (std::size_t k = 0; k < 8; ++k) _mm_storeu_si128(reinterpret_cast<__m128i*>(values + i + 2 * k), v[k]);
  }
  return i;
}

__attribute__((target("avx2"))) std::size_t split_avx2(const std::uint64_t* values, std::size_t n,
                                                       const PlaneOutputs& planes) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[8], w[8];
    for (std::size_t k = 0; k < 8; ++k) {
      v[k] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(values + i + 16 + 2 * k),
                                 reinterpret_cast<const __m128i*>(values + i + 2 * k));
    }
    for (int round = 0; round < 4; ++round) {
      for (std::size_t j = 0; j < 4; ++j) {
        w[2 * j] = _mm256_unpacklo_epi8(v[j], v[j + 4]);
        w[2 * j + 1] = _mm256_unpackhi_epi8(v[j], v[j + 4]);
      }
      for (std::size_t k = 0; k < 8; ++k) v[k] = w[k];
    }
    for (std::size_t k = 0; k < 8; ++k) {
      if (planes[k] != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i*>(planes[k] + i), v[k]);
    }
  }
  return i;
}

__attribute__((target("avx2"))) std::size_t join_avx2(std::uint64_t* values, std::size_t n, const PlaneInputs& planes,
                                                      std::uint64_t constants) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[8], w[8];
    for (std::size_t k = 0; k < 8; ++k) {
      v[k] = planes[k] != nullptr ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(planes[k] + i))
                                  : _mm256_set1_epi8(static_cast<char>((constants >> (8 * k)) & 0xffu));
    }
    for (int round = 0; round < 3; ++round) {
      for (std::size_t j = 0; j < 4; ++j) {
        w[2 * j] = _mm256_unpacklo_epi8(v[j], v[j + 4]);
        w[2 * j + 1] = _mm256_unpackhi_epi8(v[j], v[j + 4]);
      }
      for (std::size_t k = 0; k < 8; ++k) v[k] = w[k];
    }
    for (std::size_t k = 0; k < 8; ++k) {
      _mm256_storeu2_m128i(reinterpret_cast<__m128i*>(values + i + 16 + 2 * k),
                           reinterpret_cast<__m128i*>(values + i + 2 * k), v[k]);
    }
  }
  return i;
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

std::size_t split_blocks(const std::uint64_t* values, std::size_t n, const PlaneOutputs& planes, bool wide) {
  return wide && has_avx2() ? split_avx2(values, n, planes) : split_sse2(values, n, planes);
}
std::size_t join_blocks(std::uint64_t* values, std::size_t n, const PlaneInputs& planes, std::uint64_t constants,
                        bool wide) {
  return wide && has_avx2() ? join_avx2(values, n, planes, constants) : join_sse2(values, n, planes, constants);
}

#else

std::size_t split_blocks(const std::uint64_t*, std::size_t, const PlaneOutputs&, bool) { return 0; }
std::size_t join_blocks(std::uint64_t*, std::size_t, const PlaneInputs&, std::uint64_t, bool) { return 0; }

#endif

}  // namespace

void split_planes(const std::uint64_t* values, std::size_t n, const PlaneOutputs& planes, bool wide) {
  const std::size_t done = split_blocks(values, n, planes, wide);
  for (unsigned k = 0; k < 8; ++k) {
    if (planes[k] == nullptr) continue;
    for (std::size_t i = done; i < n; ++i) planes[k][i] = static_cast<std::byte>((values[i] >> (8 * k)) & 0xffu);
  }
}

void join_planes(std::uint64_t* values, std::size_t n, const PlaneInputs& planes, std::uint64_t constants, bool wide) {
  const std::size_t done = join_blocks(values, n, planes, constants, wide);
  std::fill(values + done, values + n, constants);
  for (unsigned k = 0; k < 8; ++k) {
    if (planes[k] == nullptr) continue;
    for (std::size_t i = done; i < n; ++i) values[i] |= std::to_integer<std::uint64_t>(planes[k][i]) << (8 * k);
  }
}

}  // namespace nanhunt::trace
