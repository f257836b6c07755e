// SPDX-License-Identifier: Apache-2.0
#include "src/core/counts.h"

namespace nanhunt {

std::string format_count(std::uint64_t n) {
  std::string digits = std::to_string(n);
  for (std::size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string format_signed_count(std::int64_t n) {
  if (n >= 0) return format_count(static_cast<std::uint64_t>(n));
  return std::string("-").append(format_count(0 - static_cast<std::uint64_t>(n)));
}

std::string format_dims(const std::vector<std::int64_t>& dims, std::size_t limit) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size() && i < limit; ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  if (dims.size() > limit) text += ", …";
  return text + "]";
}

}  // namespace nanhunt
