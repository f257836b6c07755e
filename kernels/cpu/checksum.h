// SPDX-License-Identifier: Apache-2.0
// 64 bits that tell two contents of a tensor apart: equal bits give equal checksums on every path and machine, and a
// change within one aligned word of eight bytes always gives another word sum before the final mixing
// (kernels/CONTRACTS.md). Against accidents, not against intent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/checksum_words.h"
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

inline constexpr std::uint64_t kChecksumKeys[8] = {checksum_key(0), checksum_key(1), checksum_key(2), checksum_key(3),
                                                   checksum_key(4), checksum_key(5), checksum_key(6), checksum_key(7)};

// nullptr in a build without them.
ChecksumStripes checksum_stripes_avx2();
ChecksumStripes checksum_stripes_avx512();

}  // namespace nanhunt::kernels
