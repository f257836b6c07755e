// SPDX-License-Identifier: Apache-2.0
// Numbers out of the bytes of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nanhunt {

// The caller has checked that `at` has so many bytes, eight at most.
inline std::uint64_t load_little_endian(const void* at, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(at);
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | p[i];
  return value;
}
inline std::uint64_t load_little_endian(std::string_view bytes, std::size_t count) {
  return load_little_endian(bytes.data(), count);
}

}  // namespace nanhunt
