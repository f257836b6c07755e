// SPDX-License-Identifier: Apache-2.0
// The checksum of one work item of a tensor without gaps: the vectors and threads of tensor_stats_scan.h, the blocks of
// checksum_words.h. A block of the checksum belongs to the item in which it begins; where items are no multiple of it
// (some tensors past 128 MiB) the item reads on to the block's end.
#pragma once

#include <cstdint>

#include "kernels/checksum_words.h"
#include "kernels/portable/block.h"
#include "kernels/portable/tensor_stats_scan.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint64_t kBlockVectors = kChecksumBlock / kVectorBytes;
static_assert(kBlockVectors % kStatsThreads == 0, "a thread has the same lanes of every stripe");
static_assert(kChecksumLaneCount == 8 && kVectorBytes == 16, "a vector has two lanes, four have a stripe");

// What threads tell each other of an item.
inline constexpr std::uint32_t kLookTotals = 2 * kChecksumLaneCount, kChecksumStatsParts = 8;
struct ChecksumStatsShared {
  std::uint64_t sums[2][kStatsThreads], products[2][kStatsThreads];
  std::uint64_t parts[kChecksumStatsParts * kLookTotals], totals[kLookTotals];
  std::uint64_t left_over[kChecksumLaneCount];  // words after the last whole stripe
  std::uint64_t checksum;                       // of the blocks that begin in the item
  StatsPartial warps[kStatsThreads / kWarpLanes];
};

// Memory without gaps, at any alignment; what is not there of the last vector is 0. Loads come first where they can, as
// in for_each_vector().
struct VectorsOfMemory {
  std::uint64_t data, bytes;

  template <class Take>
  NANHUNT_HOST_DEVICE void each(ItemRange range, std::uint32_t thread, Take take) const {
    std::uint64_t j = range.begin + thread;
    if (data % kVectorBytes == 0) {
      const std::uint64_t whole = lesser(range.end, bytes / kVectorBytes);
      for (; j + (kStatsUnroll - 1) * kStatsThreads < whole; j += kStatsUnroll * kStatsThreads) {
        Vector v[kStatsUnroll];
        NANHUNT_UNROLL
        for (int u = 0; u < kStatsUnroll; ++u) v[u] = load_aligned(data + (j + u * kStatsThreads) * kVectorBytes);
        NANHUNT_UNROLL
        for (int u = 0; u < kStatsUnroll; ++u) take(v[u], j + u * kStatsThreads);
      }
    }
    for (; j < range.end; j += kStatsThreads) {
      const std::uint64_t at = data + j * kVectorBytes, left = bytes - j * kVectorBytes;
      if (left < kVectorBytes) {
        take(load_bytes(at, static_cast<std::uint32_t>(left)), j);
      } else {
        take(load_unaligned(at, data, data + bytes), j);
      }
    }
  }
};

// One block of the checksum: how much of the tensor it has.
struct ChecksumExtent {
  std::uint64_t bytes;  // of the block
  std::uint64_t whole;  // words of whole stripes
  NANHUNT_HOST_DEVICE ChecksumExtent(std::uint64_t tensor_bytes, std::uint64_t block)
      : bytes(lesser(tensor_bytes - block * kChecksumBlock, kChecksumBlock)),
        whole(bytes / (8 * kChecksumLaneCount) * kChecksumLaneCount) {}
};

// What one thread adds up of a block: its vectors are 256 apart, so their words have the same two lanes.
class ChecksumShare {
 public:
  NANHUNT_HOST_DEVICE explicit ChecksumShare(std::uint32_t thread)
      : keys_{checksum_key(2 * thread % kChecksumLaneCount), checksum_key(2 * thread % kChecksumLaneCount + 1)} {}

  // Vector `at` of the block; bytes that are not there are 0.
  NANHUNT_HOST_DEVICE void add(const Vector& v, std::uint64_t at, std::uint64_t whole, std::uint64_t* left_over) {
    const std::uint64_t words[2] = {std::uint64_t{v.words[1]} << 32 | v.words[0],
                                    std::uint64_t{v.words[3]} << 32 | v.words[2]};
    if (2 * at >= whole) {
      NANHUNT_UNROLL
      for (std::uint32_t i = 0; i < 2; ++i) left_over[2 * at - whole + i] = words[i];
      return;
    }
    const std::uint64_t step = at / (kChecksumLaneCount / 2) * kChecksumStep;
    NANHUNT_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      sums_[i] += words[i];
      products_[i] += checksum_product(words[i], keys_[i] + step);
    }
  }
  NANHUNT_HOST_DEVICE void leave(ChecksumStatsShared& shared, std::uint32_t thread) const {
    NANHUNT_UNROLL
    for (std::uint32_t i = 0; i < 2; ++i) {
      shared.sums[i][thread] = sums_[i];
      shared.products[i][thread] = products_[i];
    }
  }

 private:
  std::uint64_t keys_[2];
  std::uint64_t sums_[2] = {0, 0}, products_[2] = {0, 0};
};

// Adds the checksum of a block whose threads left their shares.
template <class Block>
NANHUNT_HOST_DEVICE inline void fold_checksum(Block& block, ChecksumStatsShared& shared, const ChecksumExtent& extent,
                                              std::uint64_t number) {
  block.phase([&](const Thread& thread) {
    if (thread.index >= kChecksumStatsParts * kLookTotals) return;
    const std::uint32_t total = thread.index % kLookTotals, part = thread.index / kLookTotals;
    const std::uint32_t lane = total % kChecksumLaneCount;
    const auto& of = (total < kChecksumLaneCount ? shared.sums : shared.products)[lane % 2];
    constexpr std::uint32_t kShares = kStatsThreads / (kChecksumLaneCount / 2) / kChecksumStatsParts;
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < kShares; ++i) {
      sum += of[(part * kShares + i) * (kChecksumLaneCount / 2) + lane / 2];
    }
    shared.parts[thread.index] = sum;
  });
  block.phase([&](const Thread& thread) {
    if (thread.index >= kLookTotals) return;
    std::uint64_t sum = 0;
    for (std::uint32_t part = 0; part < kChecksumStatsParts; ++part) sum += shared.parts[part * kLookTotals + thread.index];
    shared.totals[thread.index] = sum;
  });
  block.phase([&](const Thread& thread) {
    if (thread.index != 0) return;
    std::uint64_t out = checksum_begin(number, extent.bytes);
    for (std::uint32_t lane = 0; lane < kChecksumLaneCount && extent.whole != 0; ++lane) {
      out = checksum_lane(out, shared.totals[lane], shared.totals[kChecksumLaneCount + lane]);
    }
    for (std::uint64_t w = extent.whole; 8 * w < extent.bytes; ++w) {
      out = checksum_left_over(out, shared.left_over[w - extent.whole]);
    }
    shared.checksum += checksum_end(out);
  });
}

// Leaves the item's checksum in shared.checksum.
template <class Block>
NANHUNT_HOST_DEVICE inline void checksum_item(Block& block, ChecksumStatsShared& shared, std::uint64_t data, std::uint64_t bytes,
                                              ItemRange item) {
  const VectorsOfMemory memory{data, bytes};
  const std::uint64_t vectors = (bytes + kVectorBytes - 1) / kVectorBytes;
  std::uint64_t number = (item.begin + kBlockVectors - 1) / kBlockVectors;  // the first block that begins here
  block.phase([&](const Thread& thread) {
    if (thread.index == 0) shared.checksum = 0;
  });
  for (; number * kBlockVectors < item.end; ++number) {
    const std::uint64_t begin = number * kBlockVectors, end = lesser(begin + kBlockVectors, vectors);
    const ChecksumExtent extent(bytes, number);
    block.phase([&](const Thread& thread) {
      ChecksumShare share(thread.index);
      memory.each({begin, end}, thread.index, [&](const Vector& v, std::uint64_t j) {
        share.add(v, j - begin, extent.whole, shared.left_over);
      });
      share.leave(shared, thread.index);
    });
    fold_checksum(block, shared, extent, number);
  }
}

}  // namespace nanhunt::kernels::cuda
