// SPDX-License-Identifier: Apache-2.0
// Number formats: what they are called, how big they are, and exact conversions.
// All conversions round to nearest, ties to even, keep subnormals, and depend on bits alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nanhunt {

// Values are written to traces: never renumber.
enum class DType : std::uint8_t {
  kF16 = 0,
  kBF16 = 1,
  kF32 = 2,
  kF64 = 3,
  kE4M3FN = 4,
  kE5M2 = 5,
  kI64 = 6,
  kI32 = 7,
  kU8 = 8,
  kBool = 9,
};
inline constexpr int kDTypeCount = 10;

std::size_t dtype_size(DType dtype);            // bytes of one element
std::string_view dtype_name(DType dtype);       // "fp16", "bf16", "fp32", "fp64", "e4m3fn", "e5m2", "int64", ...
std::optional<DType> parse_dtype(std::string_view name);
bool is_floating(DType dtype);

// What a floating format can hold, as exact doubles. Only for floating dtypes.
struct FormatLimits {
  double max_finite;
  double min_normal;
  double min_subnormal;
  double overflows_from;    // smallest magnitude that no longer rounds to a finite number (E4M3FN: exclusive)
  double rounds_to_zero;    // largest magnitude that rounds to 0 (inclusive)
  int mantissa_bits;
  int exponent_bias;
  bool has_inf;
};
const FormatLimits& format_limits(DType dtype);

// fp8 overflow: kNoSat gives NaN (E4M3FN) or Inf (E5M2); kSatFinite gives the largest finite value.
enum class Fp8Overflow : std::uint8_t { kNoSat, kSatFinite };

std::uint16_t f32_to_f16(float x);
std::uint16_t f64_to_f16(double x);   // one rounding, not through f32
float f16_to_f32(std::uint16_t code);
std::uint16_t f32_to_bf16(float x);
std::uint16_t f64_to_bf16(double x);
float bf16_to_f32(std::uint16_t code);
std::uint8_t f32_to_e4m3fn(float x, Fp8Overflow mode = Fp8Overflow::kNoSat);
float e4m3fn_to_f32(std::uint8_t code);
std::uint8_t f32_to_e5m2(float x, Fp8Overflow mode = Fp8Overflow::kNoSat);
float e5m2_to_f32(std::uint8_t code);

// Any dtype: reads the element at `at` as a double (exact; int64 beyond 2^53 rounds).
double load_as_f64(DType dtype, const void* at);
// Any dtype: stores with one rounding. fp8 uses kNoSat. Integers truncate.
void store_from_f64(DType dtype, void* at, double value);
// What `value` becomes once stored as `dtype`, read back as a double.
double round_to(DType dtype, double value);

}  // namespace nanhunt
