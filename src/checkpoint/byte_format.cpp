// SPDX-License-Identifier: Apache-2.0
#include "src/checkpoint/byte_format.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nanhunt::checkpoint {
namespace {

double e8m0_value(std::uint8_t code) { return std::ldexp(1.0, code - 127); }

// A sign, exponent and mantissa without Inf and without a negative zero.
double fnuz_value(std::uint8_t code, int mantissa_bits, int bias) {
  const int exponent = (code & 0x7f) >> mantissa_bits, one = 1 << mantissa_bits, mantissa = code & (one - 1);
  const double size = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                    : std::ldexp(one + mantissa, exponent - bias - mantissa_bits);
  return (code & 0x80) != 0 ? -size : size;
}
double e4m3fnuz_value(std::uint8_t code) { return fnuz_value(code, 3, 8); }
double e5m2fnuz_value(std::uint8_t code) { return fnuz_value(code, 2, 16); }

constexpr ByteFormat kByteFormats[] = {
    {"e8m0", "float8_e8m0fnu", "F8_E8M0", 0xff, 0x1p127, 0x1p-127, e8m0_value},
    {"e4m3fnuz", "float8_e4m3fnuz", "F8_E4M3FNUZ", 0x80, 240, 0x1p-7, e4m3fnuz_value},
    {"e5m2fnuz", "float8_e5m2fnuz", "F8_E5M2FNUZ", 0x80, 57344, 0x1p-15, e5m2fnuz_value},
};

}  // namespace

const ByteFormat* find_byte_format(std::string_view name) {
  const auto* found = std::find_if(std::begin(kByteFormats), std::end(kByteFormats), [&](const ByteFormat& one) {
    return name == one.name || name == one.torch_name || name == one.safetensors_name;
  });
  return found == std::end(kByteFormats) ? nullptr : found;
}

double load_byte_as_f64(const ByteFormat& format, std::uint8_t code) {
  return code == format.nan_code ? std::numeric_limits<double>::quiet_NaN() : format.value(code);
}

TensorStats stats_of_codes(const ByteFormat& format, const std::array<std::int64_t, 256>& counts,
                           std::int64_t first_nonfinite) {
  TensorStats out;
  out.level = StatsLevel::kCounts;
  bool finite = false, nonzero = false;
  for (std::size_t code = 0; code < counts.size(); ++code) {
    const std::int64_t n = counts[code];
    out.numel += n;
    if (n == 0) continue;
    if (code == format.nan_code) {
      out.nan = n;
      continue;
    }
    const double value = format.value(static_cast<std::uint8_t>(code)), size = std::fabs(value);
    out.min = finite ? std::min(out.min, value) : value;
    out.max = finite ? std::max(out.max, value) : value;
    finite = true;
    out.amax = std::max(out.amax, size);
    if (size == 0) {
      out.zero += n;
      continue;
    }
    out.amin_nonzero = nonzero ? std::min(out.amin_nonzero, size) : size;
    nonzero = true;
    if (size < format.min_normal) out.subnormal += n;
  }
  out.any_nonfinite = out.nan > 0;
  out.first_nonfinite = first_nonfinite;
  return out;
}

}  // namespace nanhunt::checkpoint
