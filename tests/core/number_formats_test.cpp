// SPDX-License-Identifier: Apache-2.0
// Every row of data/number-formats.json.
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nanhunt/dtype.h"

namespace nanhunt {
namespace {

using Json = nlohmann::json;

const Json& known_answers() {
  static const Json kAnswers = [] {
    std::ifstream file(NANHUNT_SOURCE_DIR "/tests/core/data/number-formats.json");
    return Json::parse(file);
  }();
  return kAnswers;
}

std::uint64_t hex(const Json& text) { return std::stoull(text.get<std::string>(), nullptr, 16); }

float float_of(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

bool is_nan_code(DType dtype, std::uint64_t code) { return std::isnan(load_as_f64(dtype, &code)); }

// Codes are equal, or both are NaNs.
void expect_code(DType dtype, std::uint64_t got, std::uint64_t want, const Json& row) {
  if (is_nan_code(dtype, want)) {
    EXPECT_TRUE(is_nan_code(dtype, got)) << row;
  } else {
    EXPECT_EQ(got, want) << row;
  }
}

TEST(NumberFormats, every_16_bit_rounding_row_holds) {
  int rows = 0;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Json& row : known_answers().at("rounding").at(std::string(dtype_name(dtype))).at("rows")) {
      const float x = float_of(hex(row[0]));
      expect_code(dtype, dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x), hex(row[1]), row);
      expect_code(dtype, dtype == DType::kF16 ? f64_to_f16(x) : f64_to_bf16(x), hex(row[1]), row);
      std::uint64_t stored = 0;
      store_from_f64(dtype, &stored, x);
      expect_code(dtype, stored, hex(row[1]), row);
      ++rows;
    }
  }
  EXPECT_EQ(rows, 450);
}

TEST(NumberFormats, every_fp8_rounding_row_holds_in_both_overflow_modes) {
  int rows = 0;
  for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
    const auto convert = dtype == DType::kE4M3FN ? f32_to_e4m3fn : f32_to_e5m2;
    for (const Json& row : known_answers().at("rounding").at(std::string(dtype_name(dtype))).at("rows")) {
      const float x = float_of(hex(row[0]));
      expect_code(dtype, convert(x, Fp8Overflow::kNoSat), hex(row[1]), row);
      expect_code(dtype, convert(x, Fp8Overflow::kSatFinite), hex(row[2]), row);
      std::uint64_t stored = 0;
      store_from_f64(dtype, &stored, x);
      expect_code(dtype, stored, hex(row[1]), row);
      ++rows;
    }
  }
  EXPECT_EQ(rows, 450);
}

TEST(NumberFormats, limits_are_those_of_the_formats) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3FN, DType::kE5M2}) {
    const Json& want = known_answers().at("rounding").at(std::string(dtype_name(dtype)));
    const FormatLimits& got = format_limits(dtype);
    EXPECT_EQ(got.max_finite, want.at("max").get<double>());
    EXPECT_EQ(got.min_normal, want.at("min_normal").get<double>());
    EXPECT_EQ(got.min_subnormal, want.at("min_subnormal").get<double>());
    EXPECT_EQ(got.rounds_to_zero, want.at("rounds_to_zero_at_or_below").get<double>());
    EXPECT_EQ(got.overflows_from, want.at("overflow_at").get<double>());
    EXPECT_EQ(got.mantissa_bits, want.at("mantissa_bits").get<int>());
    EXPECT_EQ(got.exponent_bias, want.at("bias").get<int>());
    EXPECT_EQ(got.has_inf, want.at("has_inf").get<bool>());
    const bool inclusive = want.at("overflow_at_is_inclusive").get<bool>();
    EXPECT_EQ(!std::isfinite(round_to(dtype, got.overflows_from)), inclusive);
    EXPECT_FALSE(std::isfinite(round_to(dtype, std::nextafter(got.overflows_from, 1e300))));
    EXPECT_EQ(round_to(dtype, std::nextafter(got.overflows_from, 0)), got.max_finite);
    EXPECT_EQ(round_to(dtype, got.rounds_to_zero), 0);
    EXPECT_EQ(round_to(dtype, std::nextafter(got.rounds_to_zero, 1)), got.min_subnormal);
  }
}

TEST(NumberFormats, every_fp8_code_decodes) {
  for (const DType dtype : {DType::kE4M3FN, DType::kE5M2}) {
    const Json& table = known_answers().at("fp8_decode_f32_bits").at(std::string(dtype_name(dtype)));
    ASSERT_EQ(table.size(), 256u);
    for (unsigned code = 0; code < 256; ++code) {
      const float want = float_of(hex(table[code]));
      const auto byte = static_cast<std::uint8_t>(code);
      const float got = dtype == DType::kE4M3FN ? e4m3fn_to_f32(byte) : e5m2_to_f32(byte);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << code;
      } else {
        EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << code;
      }
    }
  }
}

TEST(NumberFormats, doubles_round_to_fp16_once) {
  const Json& rows = known_answers().at("double_rounding_f64_to_fp16");
  ASSERT_EQ(rows.size(), 6u);
  for (const Json& row : rows) {
    const double x = std::bit_cast<double>(hex(row.at("f64_bits")));
    EXPECT_EQ(f64_to_f16(x), hex(row.at("fp16_direct"))) << row;
    EXPECT_EQ(f32_to_f16(static_cast<float>(x)), hex(row.at("fp16_via_f32"))) << row;
    std::uint16_t stored = 0;
    store_from_f64(DType::kF16, &stored, x);
    EXPECT_EQ(stored, hex(row.at("fp16_direct"))) << row;
  }
}

}  // namespace
}  // namespace nanhunt
