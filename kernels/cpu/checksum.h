// SPDX-License-Identifier: Apache-2.0
// 64 bits that tell two contents of a tensor apart: equal bits give equal checksums on every path and machine, and a
// change within one aligned word of eight bytes always gives another word sum before the final mixing
// (kernels/README.md). Against accidents, not against intent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"
#include "nanhunt/tensor_view.h"

namespace nanhunt::kernels {

// Of the bytes as they lie in memory, in blocks of 32 KiB.
std::uint64_t checksum_bytes(const void* data, std::size_t bytes);
// Of the elements in row-major logical order; a dimension of stride 0 is read once. Throws as compute_stats does.
std::uint64_t checksum_elements(const TensorView& tensor);

// Two sums of each of eight lanes; word i of 64-byte stripe s goes to lane i under a key that depends on both.
struct ChecksumLanes {
  std::uint64_t sum[8] = {}, product[8] = {};
};
// Adds `stripes` stripes of 64 bytes. One function a path; for tests and for checksum.cpp.
using ChecksumStripes = void (*)(const unsigned char* data, std::size_t stripes, ChecksumLanes& lanes);
ChecksumStripes checksum_stripes(Simd simd);  // must be supported

inline constexpr std::uint64_t kChecksumKeys[8] = {0x9E3779B97F4A7C15u, 0xBF58476D1CE4E5B9u, 0x94D049BB133111EBu,
                                                   0xD6E8FEB86659FD93u, 0xA0761D6478BD642Fu, 0xE7037ED1A0B428DBu,
                                                   0x8EBC6AF09C88C6E3u, 0x589965CC75374CC3u};
inline constexpr std::uint64_t kChecksumStep = 0xC2B2AE3D27D4EB4Fu;  // added to every key after each stripe

// nullptr in a build without them.
ChecksumStripes checksum_stripes_avx2();
ChecksumStripes checksum_stripes_avx512();

}  // namespace nanhunt::kernels
