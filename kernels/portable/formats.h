// SPDX-License-Identifier: Apache-2.0
// Elements of tensors to and from op math values (float, double), one at a time, with the results of nanhunt/dtype.h.
// Rounds to nearest, ties to even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"
#include "nanhunt/dtype.h"

namespace nanhunt::kernels::cuda {

NANHUNT_HOST_DEVICE inline float half_to_float(std::uint16_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  const std::uint32_t magnitude = code & 0x7fffu;
  if (magnitude > 0x7c00u) return bits_as<float>(sign | 0x7fc00000u | (magnitude & 0x3ffu) << 13);
  if (magnitude == 0x7c00u) return bits_as<float>(sign | 0x7f800000u);
  const float value = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1p-24f
                                         : bits_as<float>((magnitude << 13) + (112u << 23));
  return bits_as<float>(bits_as<std::uint32_t>(value) | sign);
}

// `value` must not be a NaN where these add: the caller has dealt with it.
NANHUNT_HOST_DEVICE inline std::uint16_t to_half(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0x7c00u;
  if (magnitude > 0x7f800000u) {
    code = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude < 0x38800000u) {  // subnormal: an ulp of 0.5 is the smallest step of fp16
    code = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 0x477ff000u) {
    code = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | code);
}

// One rounding from double to a format of 16 bits: kMantissa stored bits, exponent bias kBias.
template <int kMantissa, int kBias>
NANHUNT_HOST_DEVICE inline std::uint16_t narrow(double value) {
  constexpr int kDrop = 52 - kMantissa;
  constexpr std::uint64_t kTop = std::uint64_t{2 * kBias + 1} << kMantissa;  // the code of infinity
  constexpr std::uint64_t kMinNormal = std::uint64_t{1023 + 1 - kBias} << 52;
  // A double whose ulp is the format's smallest step.
  constexpr std::uint64_t kStep = std::uint64_t{1023 + 52 + 1 - kBias - kMantissa} << 52;
  const std::uint64_t bits = bits_as<std::uint64_t>(value);
  const std::uint64_t sign = bits >> 48 & 0x8000u;
  const std::uint64_t magnitude = bits & 0x7fffffffffffffffu;
  std::uint64_t code = kTop;
  if (magnitude > 0x7ff0000000000000u) {
    code = kTop | std::uint64_t{1} << (kMantissa - 1) | (magnitude >> kDrop & ((std::uint64_t{1} << kMantissa) - 1));
  } else if (magnitude < kMinNormal) {
    code = bits_as<std::uint64_t>(bits_as<double>(magnitude) + bits_as<double>(kStep)) - kStep;
  } else if (magnitude < 0x7ff0000000000000u) {
    const std::uint64_t half = (std::uint64_t{1} << (kDrop - 1)) - 1;
    code = (magnitude + half + (magnitude >> kDrop & 1u) - (std::uint64_t{1023 - kBias} << 52)) >> kDrop;
    if (code > kTop) code = kTop;
  }
  return static_cast<std::uint16_t>(sign | code);
}
NANHUNT_HOST_DEVICE inline std::uint16_t to_half(double value) { return narrow<10, 15>(value); }
NANHUNT_HOST_DEVICE inline std::uint16_t to_bfloat(double value) { return narrow<7, 127>(value); }
NANHUNT_HOST_DEVICE inline std::uint16_t to_bfloat(float value) {
  const std::uint32_t bits = bits_as<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
NANHUNT_HOST_DEVICE inline float bfloat_to_float(std::uint16_t code) {
  return bits_as<float>(static_cast<std::uint32_t>(code) << 16);
}

// Truncates; NaN becomes 0, what is out of range the nearest end.
NANHUNT_HOST_DEVICE inline std::int64_t to_integer(double value, double low, double high, std::int64_t lowest,
                                                   std::int64_t highest) {
  if (!(value == value)) return 0;
  if (value >= high) return highest;
  if (value <= low) return lowest;
  return static_cast<std::int64_t>(value);
}

// Element `index` of an array of `dtype`. fp8 is not for ops: reads as 0.
template <class T>
NANHUNT_HOST_DEVICE NANHUNT_ONCE T load_element(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::kF16:
      return static_cast<T>(half_to_float(static_cast<const std::uint16_t*>(data)[index]));
    case DType::kBF16:
      return static_cast<T>(bfloat_to_float(static_cast<const std::uint16_t*>(data)[index]));
    case DType::kF32:
      return static_cast<T>(static_cast<const float*>(data)[index]);
    case DType::kF64:
      return static_cast<T>(static_cast<const double*>(data)[index]);
    case DType::kI64:
      return static_cast<T>(static_cast<const std::int64_t*>(data)[index]);
    case DType::kI32:
      return static_cast<T>(static_cast<const std::int32_t*>(data)[index]);
    case DType::kU8:
      return static_cast<T>(static_cast<const std::uint8_t*>(data)[index]);
    case DType::kBool:
      return static_cast<T>(static_cast<const std::uint8_t*>(data)[index] != 0 ? 1 : 0);
    default:
      return T{0};
  }
}

template <class T>
NANHUNT_HOST_DEVICE NANHUNT_ONCE void store_element(DType dtype, void* data, std::int64_t index, T value) {
  switch (dtype) {
    case DType::kF16:
      static_cast<std::uint16_t*>(data)[index] = to_half(value);
      break;
    case DType::kBF16:
      static_cast<std::uint16_t*>(data)[index] = to_bfloat(value);
      break;
    case DType::kF32:
      static_cast<float*>(data)[index] = static_cast<float>(value);
      break;
    case DType::kF64:
      static_cast<double*>(data)[index] = static_cast<double>(value);
      break;
    case DType::kI64:
      static_cast<std::int64_t*>(data)[index] =
          to_integer(static_cast<double>(value), -0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
      break;
    case DType::kI32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(
          to_integer(static_cast<double>(value), -0x1p31, 0x1p31, INT32_MIN, INT32_MAX));
      break;
    case DType::kU8:
      static_cast<std::uint8_t*>(data)[index] =
          static_cast<std::uint8_t>(to_integer(static_cast<double>(value), 0, 256, 0, 255));
      break;
    case DType::kBool:
      static_cast<std::uint8_t*>(data)[index] = value != T{0} ? 1 : 0;
      break;
    default:
      break;
  }
}

// What `value` is once it was stored in a format of 16 bits; other formats leave it as it is.
template <class T>
NANHUNT_HOST_DEVICE NANHUNT_ONCE T rounded_to_16_bits(DType dtype, T value) {
  if (dtype == DType::kF16) return static_cast<T>(half_to_float(to_half(value)));
  if (dtype == DType::kBF16) return static_cast<T>(bfloat_to_float(to_bfloat(value)));
  return value;
}

}  // namespace nanhunt::kernels::cuda
