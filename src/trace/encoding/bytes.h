// SPDX-License-Identifier: Apache-2.0
// Little-endian integers in byte buffers, and the zigzag map.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nanhunt::trace {

static_assert(std::endian::native == std::endian::little, "the .nht codec assumes a little-endian machine");

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

inline std::uint64_t zigzag(std::uint64_t difference) { return (difference << 1) ^ (0 - (difference >> 63)); }
inline std::uint64_t unzigzag(std::uint64_t code) { return (code >> 1) ^ (0 - (code & 1)); }
inline std::uint64_t zigzag_signed(std::int64_t value) { return zigzag(static_cast<std::uint64_t>(value)); }
inline std::int64_t unzigzag_signed(std::uint64_t code) { return static_cast<std::int64_t>(unzigzag(code)); }

inline std::uint64_t double_bits(double value) { return std::bit_cast<std::uint64_t>(value); }
inline double bits_double(std::uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace nanhunt::trace
