// SPDX-License-Identifier: Apache-2.0
// Floating-point formats of one byte that no DType names: e8m0, e4m3fnuz, e5m2fnuz. Each has one NaN and no Inf.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "nanhunt/tensor_stats.h"

namespace nanhunt::checkpoint {

struct ByteFormat {
  std::string_view name;                          // "e8m0"
  std::string_view torch_name, safetensors_name;  // "float8_e8m0fnu", "F8_E8M0"
  std::uint8_t nan_code = 0;
  double max_finite = 0, min_normal = 0;
  double (*value)(std::uint8_t code) = nullptr;  // of all codes but the NaN's
};

// By any of its names; null: none of them.
const ByteFormat* find_byte_format(std::string_view name);

double load_byte_as_f64(const ByteFormat& format, std::uint8_t code);

// StatsLevel::kCounts of elements of which each code was met so often.
TensorStats stats_of_codes(const ByteFormat& format, const std::array<std::int64_t, 256>& counts,
                           std::int64_t first_nonfinite);

}  // namespace nanhunt::checkpoint
