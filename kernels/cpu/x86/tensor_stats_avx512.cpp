// SPDX-License-Identifier: Apache-2.0
// Formats on AVX-512, as tensor_stats_simd.h wants them described.
#include <immintrin.h>

#include "kernels/cpu/tensor_stats_block.h"

// Last: what follows is compiled for AVX-512.
#include "kernels/cpu/x86/x86_avx512_begin.h"
//
#include "kernels/cpu/tensor_stats_simd.h"

namespace nanhunt::kernels {
namespace {

// Sets of bits, 32 to a lane unless said otherwise, and sums in double.
struct Common {
  using Vec = __m512i;
  using Bits = __m512i;
  using Real = __m512d;
  static constexpr int kWindow = 32;
  static constexpr int kRealWidth = 8;
  static constexpr int kSumLanesPerPass = 32;
  static constexpr bool kCountsNonzero = true;

  static Vec zero() { return _mm512_setzero_si512(); }
  static Vec load(const void* at) { return _mm512_loadu_si512(at); }
  static void store(void* at, Vec v) { _mm512_storeu_si512(at, v); }

  static Real real_zero() { return _mm512_setzero_pd(); }
  static void store_real(double* at, Real v) { _mm512_storeu_pd(at, v); }
  static Real add_real(Real sum, Real x) { return _mm512_add_pd(sum, x); }
  // Exact product, one rounding: the same as multiplying first wherever x * x fits in a double.
  static Real add_square(Real sum, Real x) { return _mm512_fmadd_pd(x, x, sum); }
  static Real finite_or_zero(Real x) {
    return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(_mm512_abs_pd(x), _mm512_set1_pd(__builtin_inf()), _CMP_LT_OQ), x);
  }

  static Bits bits_zero() { return _mm512_setzero_si512(); }
  static Bits half_add(Bits& sum, Bits x) {
    const Bits carry = _mm512_and_si512(sum, x);
    sum = _mm512_xor_si512(sum, x);
    return carry;
  }
  static Bits full_add(Bits& sum, Bits x, Bits y) {
    const Bits carry = _mm512_ternarylogic_epi32(sum, x, y, 0xE8);  // majority
    sum = _mm512_ternarylogic_epi32(sum, x, y, 0x96);               // parity
    return carry;
  }
  static int count_bit(Bits plane, int bit) {
    return __builtin_popcount(_mm512_test_epi32_mask(plane, _mm512_set1_epi32(static_cast<int>(1u << bit))));
  }
  // 1 << (top - field) where that is a bit of the lane, else 0. The field's highest bit is `left` below bit 31.
  template <int kLeft, int kExponentBits>
  static Bits one_hot(Vec v, int top) {
    const Vec field = _mm512_srli_epi32(_mm512_slli_epi32(v, kLeft), 32 - kExponentBits);
    return _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_sub_epi32(_mm512_set1_epi32(top), field));
  }
};

struct Words : Common {
  using Code = std::uint16_t;
  static constexpr int kWidth = 32;
  static constexpr int kOneHots = 2;
  static Vec set1(Code code) { return _mm512_set1_epi16(static_cast<short>(code)); }
  static Vec magnitude(Vec v) { return _mm512_and_si512(v, set1(0x7FFF)); }
  static Vec max_signed(Vec a, Vec b) { return _mm512_max_epi16(a, b); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm512_max_epu16(a, b); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm512_min_epu16(a, b); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const __mmask32 nonzero = _mm512_test_epi16_mask(v, v);
    least = _mm512_mask_min_epu16(least, nonzero, least, v);
    count = _mm512_mask_sub_epi16(count, nonzero, count, set1(0xFFFF));
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) {
    return _mm512_mask_sub_epi16(count, _mm512_cmplt_epu16_mask(v, limit), count, set1(0xFFFF));
  }
  static Vec add_if_equal(Vec count, Vec v, Vec code) {
    return _mm512_mask_sub_epi16(count, _mm512_cmpeq_epi16_mask(v, code), count, set1(0xFFFF));
  }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm512_mask_blend_epi16(_mm512_cmplt_epu16_mask(v, limit), no, yes);
  }
};

struct Half : Words {
  static constexpr DType kDType = DType::kF16;
  static Real to_real(const Code* at) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    out[0] = one_hot<17, 5>(v, top);
    out[1] = one_hot<1, 5>(v, top);
  }
};

struct BFloat : Words {
  static constexpr DType kDType = DType::kBF16;
  static Real to_real(const Code* at) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    out[0] = one_hot<17, 8>(v, top);
    out[1] = one_hot<1, 8>(v, top);
  }
};

struct Single : Common {
  using Code = std::uint32_t;
  static constexpr DType kDType = DType::kF32;
  static constexpr int kWidth = 16;
  static constexpr int kOneHots = 1;
  static Vec set1(Code code) { return _mm512_set1_epi32(static_cast<int>(code)); }
  static Vec magnitude(Vec v) { return _mm512_and_si512(v, set1(0x7FFFFFFF)); }
  static Vec max_signed(Vec a, Vec b) { return _mm512_max_epi32(a, b); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm512_max_epu32(a, b); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm512_min_epu32(a, b); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const __mmask16 nonzero = _mm512_test_epi32_mask(v, v);
    least = _mm512_mask_min_epu32(least, nonzero, least, v);
    count = _mm512_mask_sub_epi32(count, nonzero, count, set1(0xFFFFFFFF));
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) {
    return _mm512_mask_sub_epi32(count, _mm512_cmplt_epu32_mask(v, limit), count, set1(0xFFFFFFFF));
  }
  static Vec add_if_equal(Vec count, Vec v, Vec code) {
    return _mm512_mask_sub_epi32(count, _mm512_cmpeq_epi32_mask(v, code), count, set1(0xFFFFFFFF));
  }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epu32_mask(v, limit), no, yes);
  }
  static Real to_real(const Code* at) {
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
  }
  static void one_hots(Vec v, int top, Bits* out) { out[0] = one_hot<1, 8>(v, top); }
};

struct Double : Common {
  using Code = std::uint64_t;
  static constexpr DType kDType = DType::kF64;
  static constexpr int kWidth = 8;
  static constexpr int kOneHots = 1;
  static constexpr int kWindow = 64;
  static Vec set1(Code code) { return _mm512_set1_epi64(static_cast<long long>(code)); }
  static Vec magnitude(Vec v) { return _mm512_and_si512(v, set1(~Code{0} >> 1)); }
  static Vec max_signed(Vec a, Vec b) { return _mm512_max_epi64(a, b); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm512_max_epu64(a, b); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm512_min_epu64(a, b); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const __mmask8 nonzero = _mm512_test_epi64_mask(v, v);
    least = _mm512_mask_min_epu64(least, nonzero, least, v);
    count = _mm512_mask_sub_epi64(count, nonzero, count, set1(~Code{0}));
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) {
    return _mm512_mask_sub_epi64(count, _mm512_cmplt_epu64_mask(v, limit), count, set1(~Code{0}));
  }
  static Vec add_if_equal(Vec count, Vec v, Vec code) {
    return _mm512_mask_sub_epi64(count, _mm512_cmpeq_epi64_mask(v, code), count, set1(~Code{0}));
  }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm512_mask_blend_epi64(_mm512_cmplt_epu64_mask(v, limit), no, yes);
  }
  static Real to_real(const Code* at) { return _mm512_loadu_pd(at); }
  // x * x does not fit: two roundings, as in the reference.
  static Real add_square(Real sum, Real x) { return _mm512_add_pd(sum, _mm512_mul_pd(x, x)); }
  static int count_bit(Bits plane, int bit) {
    return __builtin_popcount(_mm512_test_epi64_mask(plane, _mm512_set1_epi64(static_cast<long long>(1ull << bit))));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    const Vec field = _mm512_srli_epi64(_mm512_slli_epi64(v, 1), 53);
    out[0] = _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_sub_epi64(_mm512_set1_epi64(top), field));
  }
};

struct Bytes : Common {
  using Code = std::uint8_t;
  static constexpr int kWidth = 64;
  static Vec magnitude(Vec v) { return _mm512_and_si512(v, _mm512_set1_epi8(0x7F)); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm512_max_epu8(a, b); }
};
struct E4M3 : Bytes {
  static constexpr DType kDType = DType::kE4M3FN;
};
struct E5M2 : Bytes {
  static constexpr DType kDType = DType::kE5M2;
};

}  // namespace

const StatsKernel* stats_kernel_avx512(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return &kKernel<Half>;
    case DType::kBF16:
      return &kKernel<BFloat>;
    case DType::kF32:
      return &kKernel<Single>;
    case DType::kF64:
      return &kKernel<Double>;
    case DType::kE4M3FN:
      return &kByteKernel<E4M3>;
    case DType::kE5M2:
      return &kByteKernel<E5M2>;
    default:
      return nullptr;
  }
}

}  // namespace nanhunt::kernels

#include "kernels/cpu/x86/x86_end.h"
