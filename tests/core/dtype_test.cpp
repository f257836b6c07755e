// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>

namespace nanhunt {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN, DType::kE5M2};

double value_of(DType dtype, std::uint64_t code) { return load_as_f64(dtype, &code); }
std::uint64_t stored(DType dtype, double value) {
  std::uint64_t code = 0;
  store_from_f64(dtype, &code, value);
  return code;
}

TEST(DType, every_name_parses_back_and_unknown_names_do_not) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_size(dtype), 0u);
  }
  EXPECT_EQ(parse_dtype("float16"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_THROW(dtype_size(static_cast<DType>(77)), std::invalid_argument);
  EXPECT_THROW(format_limits(DType::kI32), std::invalid_argument);
}

TEST(DType, only_the_first_six_are_floating) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_EQ(is_floating(static_cast<DType>(i)), i < 6);
}

TEST(DType, every_16_bit_and_8_bit_code_survives_a_round_trip) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::uint64_t codes = std::uint64_t{1} << (8 * dtype_size(dtype));
    for (std::uint64_t code = 0; code < codes; ++code) {
      const double value = value_of(dtype, code);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(value_of(dtype, stored(dtype, value)))) << dtype_name(dtype) << " " << code;
        ASSERT_EQ(std::signbit(value), code >= codes / 2);
      } else {
        ASSERT_EQ(stored(dtype, value), code) << dtype_name(dtype);
      }
    }
  }
}

TEST(DType, single_and_double_paths_agree_on_every_16_bit_code) {
  for (unsigned i = 0; i < 65536; ++i) {
    const auto code = static_cast<std::uint16_t>(i);
    const float half = f16_to_f32(code);
    const float brain = bf16_to_f32(code);
    ASSERT_EQ(std::isnan(half), std::isnan(value_of(DType::kF16, code)));
    ASSERT_EQ(std::isnan(brain), std::isnan(value_of(DType::kBF16, code)));
    if (!std::isnan(half)) {
      ASSERT_EQ(double{half}, value_of(DType::kF16, code));
      ASSERT_EQ(f32_to_f16(half), code);
    }
    if (!std::isnan(brain)) {
      ASSERT_EQ(double{brain}, value_of(DType::kBF16, code));
      ASSERT_EQ(f32_to_bf16(brain), code);
    }
  }
}

// The definition itself: between two neighbours the nearer one wins, in the middle the even code.
TEST(DType, rounding_goes_to_the_nearest_code_and_ties_to_even) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const std::uint64_t sign = std::uint64_t{1} << (8 * dtype_size(dtype) - 1);
    for (std::uint64_t code = 0; std::isfinite(value_of(dtype, code + 1)); ++code) {
      const double low = value_of(dtype, code);
      const double high = value_of(dtype, code + 1);
      const double middle = low + (high - low) / 2;
      ASSERT_EQ(stored(dtype, middle), code % 2 == 0 ? code : code + 1) << dtype_name(dtype) << " " << code;
      ASSERT_EQ(stored(dtype, std::nextafter(middle, 0)), code);
      ASSERT_EQ(stored(dtype, std::nextafter(middle, kInf)), code + 1);
      ASSERT_EQ(stored(dtype, -middle), sign | (code % 2 == 0 ? code : code + 1));
    }
  }
}

TEST(DType, conversion_to_fp32_is_the_processors_own) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200000; ++i) {
    std::uint64_t bits = random();
    if (i % 2 == 0) bits = (bits & 0x800FFFFFFFFFFFFFull) | ((870 + bits % 300) << 52);  // in and around fp32's range
    const double x = std::bit_cast<double>(bits);
    const auto got = static_cast<std::uint32_t>(stored(DType::kF32, x));
    const float want = static_cast<float>(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(std::bit_cast<float>(got)));
    } else {
      ASSERT_EQ(got, std::bit_cast<std::uint32_t>(want)) << x;
    }
  }
}

TEST(DType, nan_stays_nan_and_keeps_its_sign) {
  for (const DType dtype : kFloats) {
    EXPECT_TRUE(std::isnan(round_to(dtype, kNaN)));
    EXPECT_TRUE(std::isnan(round_to(dtype, -kNaN)));
    EXPECT_TRUE(std::signbit(round_to(dtype, std::copysign(kNaN, -1.0))));
    // A signalling NaN whose payload has no bit that the target could keep.
    EXPECT_TRUE(std::isnan(round_to(dtype, std::bit_cast<double>(0x7FF0000000000001ull))));
  }
  EXPECT_TRUE(std::isnan(e4m3fn_to_f32(f32_to_e4m3fn(std::nanf(""), Fp8Overflow::kSatFinite))));
  EXPECT_TRUE(std::isnan(e5m2_to_f32(f32_to_e5m2(std::nanf(""), Fp8Overflow::kSatFinite))));
}

TEST(DType, infinity_is_kept_where_there_is_one) {
  for (const DType dtype : kFloats) {
    if (format_limits(dtype).has_inf) {
      EXPECT_EQ(round_to(dtype, kInf), kInf);
      EXPECT_EQ(round_to(dtype, -kInf), -kInf);
    } else {
      EXPECT_TRUE(std::isnan(round_to(dtype, kInf)));
    }
  }
  EXPECT_EQ(e4m3fn_to_f32(f32_to_e4m3fn(-std::numeric_limits<float>::infinity(), Fp8Overflow::kSatFinite)), -448.0f);
  EXPECT_EQ(e5m2_to_f32(f32_to_e5m2(1e30f, Fp8Overflow::kSatFinite)), 57344.0f);
}

TEST(DType, zero_keeps_its_sign) {
  for (const DType dtype : kFloats) {
    EXPECT_TRUE(std::signbit(round_to(dtype, -0.0)));
    EXPECT_FALSE(std::signbit(round_to(dtype, 0.0)));
    EXPECT_TRUE(std::signbit(round_to(dtype, dtype == DType::kF64 ? -0.0 : -1e-300)));
  }
}

TEST(DType, subnormals_are_exact) {
  EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24f);
  EXPECT_EQ(f16_to_f32(0x03FF), 0x1p-14f - 0x1p-24f);
  EXPECT_EQ(bf16_to_f32(0x0001), 0x1p-133f);
  EXPECT_EQ(value_of(DType::kF32, 1), 0x1p-149);
  EXPECT_EQ(value_of(DType::kF64, 1), 0x1p-1074);
  EXPECT_EQ(value_of(DType::kE4M3FN, 1), 0x1p-9);
  EXPECT_EQ(value_of(DType::kE5M2, 1), 0x1p-16);
  EXPECT_EQ(round_to(DType::kF32, 0x1p-149), 0x1p-149);
  EXPECT_EQ(round_to(DType::kF32, 0x1p-150), 0);
  EXPECT_EQ(round_to(DType::kF64, 0x1p-1074), 0x1p-1074);
}

TEST(DType, limits_of_fp32_and_fp64) {
  const FormatLimits& single = format_limits(DType::kF32);
  EXPECT_EQ(single.max_finite, double{std::numeric_limits<float>::max()});
  EXPECT_EQ(single.min_subnormal, 0x1p-149);
  EXPECT_EQ(single.overflows_from, 0x1p128 - 0x1p103);
  EXPECT_EQ(single.rounds_to_zero, 0x1p-150);
  const FormatLimits& full = format_limits(DType::kF64);
  EXPECT_EQ(full.max_finite, std::numeric_limits<double>::max());
  EXPECT_EQ(full.min_subnormal, 0x1p-1074);
  EXPECT_EQ(full.overflows_from, kInf);
  EXPECT_EQ(full.rounds_to_zero, 0);
}

TEST(DType, integers_truncate_and_saturate) {
  EXPECT_EQ(round_to(DType::kI32, 2.9), 2);
  EXPECT_EQ(round_to(DType::kI32, -2.9), -2);
  EXPECT_EQ(round_to(DType::kI32, 1e300), 2147483647);
  EXPECT_EQ(round_to(DType::kI32, -kInf), -2147483648.0);
  EXPECT_EQ(round_to(DType::kI32, kNaN), 0);
  EXPECT_EQ(stored(DType::kI64, 1e300), 0x7FFFFFFFFFFFFFFFull);
  EXPECT_EQ(stored(DType::kI64, -1e300), 0x8000000000000000ull);
  EXPECT_EQ(stored(DType::kI64, -3.0), ~std::uint64_t{2});
  EXPECT_EQ(round_to(DType::kU8, 300), 255);
  EXPECT_EQ(round_to(DType::kU8, 255.5), 255);
  EXPECT_EQ(round_to(DType::kU8, -1), 0);
  EXPECT_EQ(round_to(DType::kBool, 0.25), 1);
  EXPECT_EQ(round_to(DType::kBool, -0.0), 0);
  EXPECT_EQ(round_to(DType::kBool, kNaN), 1);
}

TEST(DType, unaligned_elements_are_read_and_written) {
  unsigned char memory[16] = {};
  for (int i = 0; i < kDTypeCount; ++i) {
    store_from_f64(static_cast<DType>(i), memory + 3, 1.0);
    EXPECT_EQ(load_as_f64(static_cast<DType>(i), memory + 3), 1.0);
  }
}

}  // namespace
}  // namespace nanhunt
