// SPDX-License-Identifier: Apache-2.0
// Floating formats as codes, found by asking the conversions of nanhunt/dtype.h: what they say is the truth.
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/cpu/tensor_stats_block.h"

namespace nanhunt::kernels {
namespace {

double value_of(DType dtype, std::uint64_t code) { return load_as_f64(dtype, &code); }

// The first magnitude in [0, end) with the property, or end. The property must hold from there on.
template <class Property>
std::uint64_t first_magnitude(std::uint64_t end, Property property) {
  std::uint64_t low = 0;
  std::uint64_t high = end;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (property(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

FormatCodes make_codes(DType dtype) {
  FormatCodes codes{};
  const FormatLimits& limits = format_limits(dtype);
  codes.dtype = dtype;
  codes.sign = std::uint64_t{1} << (8 * dtype_size(dtype) - 1);
  codes.mantissa_bits = limits.mantissa_bits;
  codes.first_nan = first_magnitude(codes.sign, [&](std::uint64_t m) { return std::isnan(value_of(dtype, m)); });
  codes.first_nonfinite =
      first_magnitude(codes.sign, [&](std::uint64_t m) { return !std::isfinite(value_of(dtype, m)); });
  codes.min_normal = std::uint64_t{1} << limits.mantissa_bits;
  for (std::size_t i = 0; i < kWhatIfFormats.size(); ++i) {
    const DType target = kWhatIfFormats[i];
    const double min_normal = format_limits(target).min_normal;
    const auto first = [&](auto property) {
      return first_magnitude(codes.first_nonfinite,
                             [&](std::uint64_t m) { return property(round_to(target, value_of(dtype, m))); });
    };
    codes.thresholds[3 * i] = first([](double there) { return there != 0; });
    codes.thresholds[3 * i + 1] = first([&](double there) { return !(there < min_normal); });
    codes.thresholds[3 * i + 2] = first([](double there) { return !std::isfinite(there); });
  }
  return codes;
}

}  // namespace

const FormatCodes& format_codes(DType dtype) {
  // In the order of DType.
  static const std::array<FormatCodes, 6> kCodes = {make_codes(DType::kF16),    make_codes(DType::kBF16),
                                                    make_codes(DType::kF32),    make_codes(DType::kF64),
                                                    make_codes(DType::kE4M3FN), make_codes(DType::kE5M2)};
  return kCodes[static_cast<std::size_t>(dtype)];
}

}  // namespace nanhunt::kernels
