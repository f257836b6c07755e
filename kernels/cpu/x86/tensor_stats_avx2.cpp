// SPDX-License-Identifier: Apache-2.0
// Formats on AVX2, as tensor_stats_simd.h wants them described. Compares are signed here: fine for magnitudes.
#include <immintrin.h>

#include "kernels/cpu/tensor_stats_block.h"

// Last: what follows is compiled for AVX2.
#include "kernels/cpu/x86/x86_avx2_begin.h"
//
#include "kernels/cpu/tensor_stats_simd.h"

namespace nanhunt::kernels {
namespace {

// Sets of bits, 32 to a lane unless said otherwise, and sums in double.
struct Common {
  using Vec = __m256i;
  using Bits = __m256i;
  using Real = __m256d;
  static constexpr int kWindow = 32;
  static constexpr int kRealWidth = 4;
  static constexpr int kSumLanesPerPass = 16;  // sums and squares of all 32 would need every register
  static constexpr bool kCountsNonzero = false;

  static Vec zero() { return _mm256_setzero_si256(); }
  static Vec load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  static void store(void* at, Vec v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

  static Real real_zero() { return _mm256_setzero_pd(); }
  static void store_real(double* at, Real v) { _mm256_storeu_pd(at, v); }
  static Real add_real(Real sum, Real x) { return _mm256_add_pd(sum, x); }
  // Exact product, one rounding: the same as multiplying first wherever x * x fits in a double.
  static Real add_square(Real sum, Real x) { return _mm256_fmadd_pd(x, x, sum); }
  static Real finite_or_zero(Real x) {
    const Real magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
    return _mm256_and_pd(x, _mm256_cmp_pd(magnitude, _mm256_set1_pd(__builtin_inf()), _CMP_LT_OQ));
  }

  static Bits bits_zero() { return _mm256_setzero_si256(); }
  static Bits half_add(Bits& sum, Bits x) {
    const Bits carry = _mm256_and_si256(sum, x);
    sum = _mm256_xor_si256(sum, x);
    return carry;
  }
  static Bits full_add(Bits& sum, Bits x, Bits y) {
    const Bits either = _mm256_xor_si256(sum, x);
    const Bits carry = _mm256_or_si256(_mm256_and_si256(sum, x), _mm256_and_si256(either, y));
    sum = _mm256_xor_si256(either, y);
    return carry;
  }
  static int count_bit(Bits plane, int bit) {
    const __m256i at_sign = _mm256_sll_epi32(plane, _mm_cvtsi32_si128(31 - bit));
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(at_sign))));
  }
  // 1 << (top - field) where that is a bit of the lane, else 0. The field's highest bit is `left` below bit 31.
  template <int kLeft, int kExponentBits>
  static Bits one_hot(Vec v, int top) {
    const Vec field = _mm256_srli_epi32(_mm256_slli_epi32(v, kLeft), 32 - kExponentBits);
    return _mm256_sllv_epi32(_mm256_set1_epi32(1), _mm256_sub_epi32(_mm256_set1_epi32(top), field));
  }
};

struct Words : Common {
  using Code = std::uint16_t;
  static constexpr int kWidth = 16;
  static constexpr int kOneHots = 2;
  static Vec set1(Code code) { return _mm256_set1_epi16(static_cast<short>(code)); }
  static Vec magnitude(Vec v) { return _mm256_and_si256(v, set1(0x7FFF)); }
  static Vec max_signed(Vec a, Vec b) { return _mm256_max_epi16(a, b); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm256_max_epu16(a, b); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm256_min_epu16(a, b); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const Vec is_zero = _mm256_cmpeq_epi16(v, zero());
    least = _mm256_min_epu16(least, _mm256_or_si256(v, is_zero));
    count = _mm256_sub_epi16(count, is_zero);
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) { return _mm256_sub_epi16(count, _mm256_cmpgt_epi16(limit, v)); }
  static Vec add_if_equal(Vec count, Vec v, Vec code) { return _mm256_sub_epi16(count, _mm256_cmpeq_epi16(v, code)); }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi16(limit, v));
  }
};

struct Half : Words {
  static constexpr DType kDType = DType::kF16;
  static Real to_real(const Code* at) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    out[0] = one_hot<17, 5>(v, top);
    out[1] = one_hot<1, 5>(v, top);
  }
};

struct BFloat : Words {
  static constexpr DType kDType = DType::kBF16;
  static Real to_real(const Code* at) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), codes)));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    out[0] = one_hot<17, 8>(v, top);
    out[1] = one_hot<1, 8>(v, top);
  }
};

struct Single : Common {
  using Code = std::uint32_t;
  static constexpr DType kDType = DType::kF32;
  static constexpr int kWidth = 8;
  static constexpr int kOneHots = 1;
  static Vec set1(Code code) { return _mm256_set1_epi32(static_cast<int>(code)); }
  static Vec magnitude(Vec v) { return _mm256_and_si256(v, set1(0x7FFFFFFF)); }
  static Vec max_signed(Vec a, Vec b) { return _mm256_max_epi32(a, b); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm256_max_epu32(a, b); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm256_min_epu32(a, b); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const Vec is_zero = _mm256_cmpeq_epi32(v, zero());
    least = _mm256_min_epu32(least, _mm256_or_si256(v, is_zero));
    count = _mm256_sub_epi32(count, is_zero);
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) { return _mm256_sub_epi32(count, _mm256_cmpgt_epi32(limit, v)); }
  static Vec add_if_equal(Vec count, Vec v, Vec code) { return _mm256_sub_epi32(count, _mm256_cmpeq_epi32(v, code)); }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(limit, v));
  }
  static Real to_real(const Code* at) { return _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<const float*>(at))); }
  static void one_hots(Vec v, int top, Bits* out) { out[0] = one_hot<1, 8>(v, top); }
};

struct Double : Common {
  using Code = std::uint64_t;
  static constexpr DType kDType = DType::kF64;
  static constexpr int kWidth = 4;
  static constexpr int kOneHots = 1;
  static constexpr int kWindow = 64;
  static Vec set1(Code code) { return _mm256_set1_epi64x(static_cast<long long>(code)); }
  static Vec magnitude(Vec v) { return _mm256_and_si256(v, set1(~Code{0} >> 1)); }
  static Vec flip(Vec v) { return _mm256_xor_si256(v, set1(Code{1} << 63)); }
  static Vec max_signed(Vec a, Vec b) { return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b)); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(flip(a), flip(b))); }
  static Vec min_unsigned(Vec a, Vec b) { return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(flip(a), flip(b))); }
  static void track_nonzero(Vec v, Vec& least, Vec& count) {
    const Vec is_zero = _mm256_cmpeq_epi64(v, zero());
    least = min_unsigned(least, _mm256_or_si256(v, is_zero));
    count = _mm256_sub_epi64(count, is_zero);
  }
  static Vec add_if_below(Vec count, Vec v, Vec limit) { return _mm256_sub_epi64(count, _mm256_cmpgt_epi64(limit, v)); }
  static Vec add_if_equal(Vec count, Vec v, Vec code) { return _mm256_sub_epi64(count, _mm256_cmpeq_epi64(v, code)); }
  static Vec keep_below(Vec v, Vec limit, Vec yes, Vec no) {
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi64(limit, v));
  }
  static Real to_real(const Code* at) { return _mm256_loadu_pd(reinterpret_cast<const double*>(at)); }
  // x * x does not fit: two roundings, as in the reference.
  static Real add_square(Real sum, Real x) { return _mm256_add_pd(sum, _mm256_mul_pd(x, x)); }
  static int count_bit(Bits plane, int bit) {
    const __m256i at_sign = _mm256_sll_epi64(plane, _mm_cvtsi32_si128(63 - bit));
    return __builtin_popcount(static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(at_sign))));
  }
  static void one_hots(Vec v, int top, Bits* out) {
    const Vec field = _mm256_srli_epi64(_mm256_slli_epi64(v, 1), 53);
    out[0] = _mm256_sllv_epi64(_mm256_set1_epi64x(1), _mm256_sub_epi64(_mm256_set1_epi64x(top), field));
  }
};

struct Bytes : Common {
  using Code = std::uint8_t;
  static constexpr int kWidth = 32;
  static Vec magnitude(Vec v) { return _mm256_and_si256(v, _mm256_set1_epi8(0x7F)); }
  static Vec max_unsigned(Vec a, Vec b) { return _mm256_max_epu8(a, b); }
};
struct E4M3 : Bytes {
  static constexpr DType kDType = DType::kE4M3FN;
};
struct E5M2 : Bytes {
  static constexpr DType kDType = DType::kE5M2;
};

}  // namespace

const StatsKernel* stats_kernel_avx2(DType dtype) {
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
