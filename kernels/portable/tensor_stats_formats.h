// SPDX-License-Identifier: Apache-2.0
// The floating formats of tensor_stats as constants. A test holds them to kernels/cpu/format_codes.cpp, which finds
// them by asking the conversions. Magnitudes are codes without the sign bit; they grow with the absolute value.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"
#include "nanhunt/dtype.h"

namespace nanhunt::kernels::cuda {

inline constexpr int kThresholds = 12;  // of the what-if level: FormatCodes::thresholds

template <DType kDType>
struct StatsFormat;

template <>
struct StatsFormat<DType::kF16> {
  static constexpr int kBytes = 2, kMantissa = 10, kBinades = 40;
  static constexpr std::uint64_t kFirstNonfinite = 0x7c00, kFirstNan = 0x7c01;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x1,    0x400,  0x7c00, 0x1,  0x1,   0x7c00,
                                                   0x1401, 0x2380, 0x5f41, 0x81, 0x380, 0x7b80};
    return kTable[i];
  }
};

template <>
struct StatsFormat<DType::kBF16> {
  static constexpr int kBytes = 2, kMantissa = 7, kBinades = 261;
  static constexpr std::uint64_t kFirstNonfinite = 0x7f80, kFirstNan = 0x7f81;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x3301, 0x3880, 0x4780, 0x1,    0x80,   0x7f80,
                                                   0x3a81, 0x3c70, 0x43e9, 0x3701, 0x3860, 0x4770};
    return kTable[i];
  }
};

template <>
struct StatsFormat<DType::kF32> {
  static constexpr int kBytes = 4, kMantissa = 23, kBinades = 277;
  static constexpr std::uint64_t kFirstNonfinite = 0x7f800000, kFirstNan = 0x7f800001;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x33000001, 0x387fe000, 0x477ff000, 0x8001,
                                                   0x7f8000,   0x7f7f8000, 0x3a800001, 0x3c700000,
                                                   0x43e80001, 0x37000001, 0x38600000, 0x47700000};
    return kTable[i];
  }
};

template <>
struct StatsFormat<DType::kF64> {
  static constexpr int kBytes = 8, kMantissa = 52, kBinades = 2098;
  static constexpr std::uint64_t kFirstNonfinite = 0x7ff0000000000000, kFirstNan = 0x7ff0000000000001;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x3e60000000000001, 0x3f0ffc0000000000, 0x40effe0000000000,
                                                   0x3790000000000001, 0x380fe00000000000, 0x47eff00000000000,
                                                   0x3f50000000000001, 0x3f8e000000000000, 0x407d000000000001,
                                                   0x3ee0000000000001, 0x3f0c000000000000, 0x40ee000000000000};
    return kTable[i];
  }
};

template <>
struct StatsFormat<DType::kE4M3FN> {
  static constexpr int kBytes = 1, kMantissa = 3, kBinades = 18;
  static constexpr std::uint64_t kFirstNonfinite = 0x7f, kFirstNan = 0x7f;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x1, 0x1, 0x7f, 0x1, 0x1, 0x7f, 0x1, 0x8, 0x7f, 0x1, 0x1, 0x7f};
    return kTable[i];
  }
};

template <>
struct StatsFormat<DType::kE5M2> {
  static constexpr int kBytes = 1, kMantissa = 2, kBinades = 32;
  static constexpr std::uint64_t kFirstNonfinite = 0x7c, kFirstNan = 0x7d;
  NANHUNT_HOST_DEVICE static constexpr std::uint64_t threshold(int i) {
    constexpr std::uint64_t kTable[kThresholds] = {0x1, 0x4, 0x7c, 0x1, 0x1, 0x7c, 0x15, 0x24, 0x60, 0x1, 0x4, 0x7c};
    return kTable[i];
  }
};

template <DType kDType>
NANHUNT_HOST_DEVICE constexpr std::uint64_t min_normal() {
  return std::uint64_t{1} << StatsFormat<kDType>::kMantissa;
}

// The same as 16-bit lanes: formats of 8 bits are widened by eight zero bits below, which keeps order and classes.
template <DType kDType>
struct LaneFormat {
  using Format = StatsFormat<kDType>;
  static constexpr int kShift = 8 * (2 - Format::kBytes);
  static constexpr std::uint32_t kFirstNonfinite = static_cast<std::uint32_t>(Format::kFirstNonfinite) << kShift;
  static constexpr std::uint32_t kMinNormal = static_cast<std::uint32_t>(min_normal<kDType>()) << kShift;
  static constexpr int kMantissa = Format::kMantissa + kShift;
  // Binade 0 of the format is this bit of a lane.
  static constexpr int kLowestBit = kShift;
};

NANHUNT_HOST_DEVICE inline double half_value(std::uint32_t code) {
#if NANHUNT_ON_DEVICE
  double value;
  asm("cvt.f64.f16 %0, %1;" : "=d"(value) : "h"(static_cast<unsigned short>(code)));
  return value;
#else
  const std::uint32_t magnitude = code & 0x7fffu;
  const double value = magnitude < 0x400u
                           ? static_cast<double>(magnitude) * 0x1p-24
                           : bits_as<double>((std::uint64_t{magnitude} << 42) + (std::uint64_t{1023 - 15} << 52));
  return (code & 0x8000u) != 0 ? -value : value;
#endif
}

// The value of a finite lane, times 1 / sum_scale(). Exact.
template <DType kDType>
NANHUNT_HOST_DEVICE inline double lane_value(std::uint32_t code) {
  if constexpr (kDType == DType::kBF16) {
    return static_cast<double>(bits_as<float>(code << 16));
  } else if constexpr (kDType == DType::kE4M3FN) {
    return half_value((code & 0x8000u) | (code & 0x7f00u) >> 1);  // its bias is 7, not 15: 2^8 too small
  } else {
    return half_value(code);  // E5M2 is fp16 cut short
  }
}
template <DType kDType>
NANHUNT_HOST_DEVICE constexpr double sum_scale() {
  return kDType == DType::kE4M3FN ? 256.0 : 1.0;
}

// Calls visit.template operator()<kDType>() for the dtype at hand; nothing for integers.
template <class Visit>
NANHUNT_HOST_DEVICE inline void for_float_dtype(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kF16:
      return visit.template operator()<DType::kF16>();
    case DType::kBF16:
      return visit.template operator()<DType::kBF16>();
    case DType::kF32:
      return visit.template operator()<DType::kF32>();
    case DType::kF64:
      return visit.template operator()<DType::kF64>();
    case DType::kE4M3FN:
      return visit.template operator()<DType::kE4M3FN>();
    case DType::kE5M2:
      return visit.template operator()<DType::kE5M2>();
    default:
      return;
  }
}

}  // namespace nanhunt::kernels::cuda
