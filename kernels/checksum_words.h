// SPDX-License-Identifier: Apache-2.0
// The arithmetic of checksums (kernels/CONTRACTS.md), one text for the CPU and the device. A block is up to kChecksumBlock
// bytes; its words of eight bytes go to lanes as they are numbered, those after the last whole stripe are mixed in one
// by one. The checksum is the sum of its blocks', each of which knows its number: the order in which they are added is
// free.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"

namespace nanhunt::kernels {

inline constexpr std::uint64_t kChecksumBlock = 32768;
inline constexpr std::uint32_t kChecksumLaneCount = 8;               // words of a stripe
inline constexpr std::uint64_t kChecksumStep = 0xC2B2AE3D27D4EB4Fu;  // added to every key after each stripe

NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_key(std::uint32_t lane) {
  switch (lane) {
    case 0: return 0x9E3779B97F4A7C15u;
    case 1: return 0xBF58476D1CE4E5B9u;
    case 2: return 0x94D049BB133111EBu;
    case 3: return 0xD6E8FEB86659FD93u;
    case 4: return 0xA0761D6478BD642Fu;
    case 5: return 0xE7037ED1A0B428DBu;
    case 6: return 0x8EBC6AF09C88C6E3u;
    default: return 0x589965CC75374CC3u;
  }
}

NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_mix(std::uint64_t x) {  // one-to-one
  x ^= x >> 32;
  x *= 0xE9846AF9B1A615Du;
  x ^= x >> 29;
  return x;
}

NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_begin(std::uint64_t number, std::uint64_t bytes) {
  return checksum_mix(number * 0x9FB21C651E98DF25u ^ (bytes * kChecksumStep));
}
NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_product(std::uint64_t word, std::uint64_t key) {
  const std::uint64_t keyed = word ^ key;
  return (keyed & 0xFFFFFFFFu) * (keyed >> 32);
}
// What both sums of one lane add; lanes in order, then words that are left over.
NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_lane(std::uint64_t so_far, std::uint64_t sum,
                                                          std::uint64_t product) {
  return checksum_mix(so_far + sum) + product;
}
NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_left_over(std::uint64_t so_far, std::uint64_t word) {
  return checksum_mix(so_far + word);
}
NANHUNT_HOST_DEVICE constexpr std::uint64_t checksum_end(std::uint64_t so_far) { return checksum_mix(so_far); }

}  // namespace nanhunt::kernels
