// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace nanhunt::hunt {
namespace {

// Odd, so that multiplying loses nothing. Eight words at a time: the multiplications of one lane wait for each other.
constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
constexpr std::size_t kLanes = 8;

std::uint64_t mix(std::uint64_t h, std::uint64_t word) { return (h ^ word) * kFactor; }

}  // namespace

std::uint64_t compute_checksum(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  std::array<std::uint64_t, kLanes> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  std::size_t left = bytes;
  for (; left >= sizeof(lanes); left -= sizeof(lanes), at += sizeof(lanes)) {
    std::array<std::uint64_t, kLanes> words;
    std::memcpy(words.data(), at, sizeof(words));
    for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  std::uint64_t h = bytes;
  for (; left > 0;) {
    const std::size_t count = left < 8 ? left : 8;
    std::uint64_t word = 0;
    std::memcpy(&word, at, count);
    h = mix(std::rotl(h, 29), word);
    at += count;
    left -= count;
  }
  for (const std::uint64_t lane : lanes) h = mix(std::rotl(h, 29), lane ^ (lane >> 32));
  return h ^ (h >> 32);
}

}  // namespace nanhunt::hunt
