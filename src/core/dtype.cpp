// SPDX-License-Identifier: Apache-2.0
// Exact conversions between number formats, with integer arithmetic only: neither the rounding mode nor a
// flush-to-zero setting of the thread that asks can change a result.
#include "nanhunt/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace nanhunt {
namespace {

// A binary format with `kMantissa` stored mantissa bits; codes of magnitudes grow with the magnitude.
template <int kExponentBits, int kMantissaBits, bool kInf>
struct Format {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint64_t kSign = std::uint64_t{1} << (kExponentBits + kMantissaBits);
  static constexpr std::uint64_t kAbs = kSign - 1;
  static constexpr std::uint64_t kMantissaMask = (std::uint64_t{1} << kMantissaBits) - 1;
  // With infinities the top exponent is theirs and the NaNs'. Without (E4M3FN) only the last code is a NaN.
  static constexpr std::uint64_t kInfinity = kAbs & ~kMantissaMask;
  static constexpr std::uint64_t kMaxFinite = (kInf ? kInfinity : kAbs) - 1;
  static constexpr std::uint64_t kQuiet = std::uint64_t{1} << (kMantissaBits - 1);
  static constexpr bool kHasInf = kInf;
};
using Half = Format<5, 10, true>;
using BFloat = Format<8, 7, true>;
using Single = Format<8, 23, true>;
using Double = Format<11, 52, true>;
using E4M3 = Format<4, 3, false>;
using E5M2 = Format<5, 2, true>;

// Rounds significand * 2^exponent (significand != 0) to the nearest magnitude code of F, ties to even.
// The result may be kMaxFinite + 1 or more: an overflow, for the caller to settle.
template <class F>
constexpr std::uint64_t round_magnitude(std::uint64_t significand, int exponent) {
  const int top = 63 - std::countl_zero(significand) + exponent;  // exponent of the leading bit
  if (top > F::kBias + 1) return F::kAbs;
  const int scale = std::max(top, 1 - F::kBias);  // subnormals share the smallest exponent
  const int drop = scale - F::kMantissa - exponent;
  std::uint64_t rounded = 0;
  if (drop <= 0) {
    rounded = significand << -drop;
  } else if (drop < 64) {
    const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
    const std::uint64_t half = std::uint64_t{1} << (drop - 1);
    rounded = significand >> drop;
    rounded += (rest > half || (rest == half && (rounded & 1) != 0)) ? 1 : 0;
  }
  // `rounded` still holds the hidden bit, hence one exponent less; a carry moves on to the next exponent.
  return (static_cast<std::uint64_t>(scale + F::kBias - 1) << F::kMantissa) + rounded;
}

// One rounding from any IEEE format `From` to `To`. NaNs stay NaNs: quiet, with sign and leading payload kept
// where the target has room (what F16C does too), so scalar and vector code agree bit for bit.
template <class From, class To>
constexpr std::uint64_t convert(std::uint64_t code, Fp8Overflow mode = Fp8Overflow::kNoSat) {
  const std::uint64_t sign = (code & From::kSign) != 0 ? To::kSign : 0;
  const std::uint64_t magnitude = code & From::kAbs;
  const std::uint64_t at_overflow = mode == Fp8Overflow::kSatFinite ? To::kMaxFinite
                                    : To::kHasInf                   ? To::kInfinity
                                                                    : To::kAbs;
  if (magnitude == 0) return sign;
  if constexpr (From::kHasInf) {
    if (magnitude == From::kInfinity) return sign | at_overflow;
    if (magnitude > From::kInfinity) {
      if constexpr (To::kMantissa < 7) {
        return sign | To::kAbs;
      } else {
        constexpr int kShift = From::kMantissa - To::kMantissa;
        const std::uint64_t payload = magnitude & From::kMantissaMask;
        return sign | To::kInfinity | To::kQuiet | (kShift >= 0 ? payload >> kShift : payload << -kShift);
      }
    }
  } else {
    if (magnitude > From::kMaxFinite) return sign | To::kInfinity | To::kQuiet;
  }
  const auto biased = static_cast<int>(magnitude >> From::kMantissa);
  const std::uint64_t fraction = magnitude & From::kMantissaMask;
  const std::uint64_t significand = biased != 0 ? fraction | (std::uint64_t{1} << From::kMantissa) : fraction;
  const int exponent = std::max(biased, 1) - From::kBias - From::kMantissa;
  const std::uint64_t rounded = round_magnitude<To>(significand, exponent);
  return sign | (rounded > To::kMaxFinite ? at_overflow : rounded);
}

std::uint64_t bits_of(double x) { return std::bit_cast<std::uint64_t>(x); }
std::uint64_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

template <class From>
double to_f64(std::uint64_t code) {
  return std::bit_cast<double>(convert<From, Double>(code));
}
template <class From>
float to_f32(std::uint64_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(convert<From, Single>(code)));
}

template <class F>
FormatLimits make_limits() {
  FormatLimits limits{};
  limits.max_finite = to_f64<F>(F::kMaxFinite);
  limits.min_normal = to_f64<F>(F::kMantissaMask + 1);
  limits.min_subnormal = to_f64<F>(1);
  limits.mantissa_bits = F::kMantissa;
  limits.exponent_bias = F::kBias;
  limits.has_inf = F::kHasInf;
  if constexpr (F::kMantissa < Double::kMantissa) {
    const double last_ulp = limits.max_finite - to_f64<F>(F::kMaxFinite - 1);
    limits.overflows_from = limits.max_finite + last_ulp / 2;
    limits.rounds_to_zero = limits.min_subnormal / 2;
  } else {
    limits.overflows_from = std::numeric_limits<double>::infinity();
    limits.rounds_to_zero = 0;
  }
  return limits;
}

struct Info {
  std::string_view name;
  std::size_t size;
};
constexpr std::array<Info, kDTypeCount> kInfo = {{{"fp16", 2},
                                                  {"bf16", 2},
                                                  {"fp32", 4},
                                                  {"fp64", 8},
                                                  {"e4m3fn", 1},
                                                  {"e5m2", 1},
                                                  {"int64", 8},
                                                  {"int32", 4},
                                                  {"uint8", 1},
                                                  {"bool", 1}}};

const Info& info(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  if (i >= kInfo.size()) throw std::invalid_argument("[dtype] expected a known dtype, got code " + std::to_string(i));
  return kInfo[i];
}

template <class T>
T read(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
void write(void* at, std::uint64_t value) {
  const T narrow = static_cast<T>(value);
  std::memcpy(at, &narrow, sizeof narrow);
}

// Truncates; a NaN becomes 0 and what is out of range becomes the nearest end.
template <class T>
std::uint64_t to_integer(double value) {
  if (std::isnan(value)) return 0;
  constexpr double kEnd = sizeof(T) == 8 ? 0x1p63 : static_cast<double>(std::numeric_limits<T>::max()) + 1.0;
  if (value >= kEnd) return static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) {
    return static_cast<std::uint64_t>(std::numeric_limits<T>::min());
  }
  return static_cast<std::uint64_t>(static_cast<T>(value));
}

}  // namespace

std::size_t dtype_size(DType dtype) { return info(dtype).size; }
std::string_view dtype_name(DType dtype) { return info(dtype).name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kInfo.size(); ++i) {
    if (kInfo[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_floating(DType dtype) { return static_cast<int>(dtype) <= static_cast<int>(DType::kE5M2); }

const FormatLimits& format_limits(DType dtype) {
  // In the order of DType.
  static const std::array<FormatLimits, 6> kLimits = {make_limits<Half>(),   make_limits<BFloat>(),
                                                      make_limits<Single>(), make_limits<Double>(),
                                                      make_limits<E4M3>(),   make_limits<E5M2>()};
  if (!is_floating(dtype)) {
    throw std::invalid_argument("[format_limits] expected a floating dtype, got " + std::string(dtype_name(dtype)));
  }
  return kLimits[static_cast<std::size_t>(dtype)];
}

std::uint16_t f32_to_f16(float x) { return static_cast<std::uint16_t>(convert<Single, Half>(bits_of(x))); }
std::uint16_t f64_to_f16(double x) { return static_cast<std::uint16_t>(convert<Double, Half>(bits_of(x))); }
float f16_to_f32(std::uint16_t code) { return to_f32<Half>(code); }

std::uint16_t f32_to_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);  // a carry is the next exponent
}
std::uint16_t f64_to_bf16(double x) { return static_cast<std::uint16_t>(convert<Double, BFloat>(bits_of(x))); }
float bf16_to_f32(std::uint16_t code) { return std::bit_cast<float>(std::uint32_t{code} << 16); }

std::uint8_t f32_to_e4m3fn(float x, Fp8Overflow mode) {
  return static_cast<std::uint8_t>(convert<Single, E4M3>(bits_of(x), mode));
}
float e4m3fn_to_f32(std::uint8_t code) { return to_f32<E4M3>(code); }
std::uint8_t f32_to_e5m2(float x, Fp8Overflow mode) {
  return static_cast<std::uint8_t>(convert<Single, E5M2>(bits_of(x), mode));
}
float e5m2_to_f32(std::uint8_t code) { return to_f32<E5M2>(code); }

double load_as_f64(DType dtype, const void* at) {
  switch (dtype) {
    case DType::kF16:
      return to_f64<Half>(read<std::uint16_t>(at));
    case DType::kBF16:
      return to_f64<BFloat>(read<std::uint16_t>(at));
    case DType::kF32:
      return to_f64<Single>(read<std::uint32_t>(at));
    case DType::kF64:
      return read<double>(at);
    case DType::kE4M3FN:
      return to_f64<E4M3>(read<std::uint8_t>(at));
    case DType::kE5M2:
      return to_f64<E5M2>(read<std::uint8_t>(at));
    case DType::kI64:
      return static_cast<double>(read<std::int64_t>(at));
    case DType::kI32:
      return read<std::int32_t>(at);
    case DType::kU8:
      return read<std::uint8_t>(at);
    case DType::kBool:
      return read<std::uint8_t>(at) != 0 ? 1.0 : 0.0;
  }
  throw std::invalid_argument("[load_as_f64] expected a known dtype");
}

void store_from_f64(DType dtype, void* at, double value) {
  const std::uint64_t bits = bits_of(value);
  switch (dtype) {
    case DType::kF16:
      return write<std::uint16_t>(at, convert<Double, Half>(bits));
    case DType::kBF16:
      return write<std::uint16_t>(at, convert<Double, BFloat>(bits));
    case DType::kF32:
      return write<std::uint32_t>(at, convert<Double, Single>(bits));
    case DType::kF64:
      return write<std::uint64_t>(at, bits);
    case DType::kE4M3FN:
      return write<std::uint8_t>(at, convert<Double, E4M3>(bits));
    case DType::kE5M2:
      return write<std::uint8_t>(at, convert<Double, E5M2>(bits));
    case DType::kI64:
      return write<std::uint64_t>(at, to_integer<std::int64_t>(value));
    case DType::kI32:
      return write<std::uint32_t>(at, to_integer<std::int32_t>(value));
    case DType::kU8:
      return write<std::uint8_t>(at, to_integer<std::uint8_t>(value));
    case DType::kBool:
      return write<std::uint8_t>(at, value != 0 ? 1 : 0);
  }
  throw std::invalid_argument("[store_from_f64] expected a known dtype");
}

double round_to(DType dtype, double value) {
  alignas(8) unsigned char stored[8] = {};
  store_from_f64(dtype, stored, value);
  return load_as_f64(dtype, stored);
}

}  // namespace nanhunt
