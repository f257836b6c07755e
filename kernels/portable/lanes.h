// SPDX-License-Identifier: Apache-2.0
// How the engine's kernels are written: a kernel is a trivially copyable struct (its arguments). Either each element on
// its own,
//
//   NANHUNT_HOST_DEVICE std::int64_t count() const;
//   NANHUNT_HOST_DEVICE void operator()(std::int64_t i) const;
//
// or row by row, a row by kLanes lanes together:
//
//   NANHUNT_HOST_DEVICE std::int64_t count() const;
//   template <class Lanes>
//   NANHUNT_HOST_DEVICE void operator()(const Lanes& lanes, std::int64_t row) const;
//
// What Lanes offers (on the device: device_row_threads.h; on the CPU: tests/support/emulated_device.cpp):
//
//   lanes.each(n, f)             // f(i) for every i below n, in no order; no lane may read what another wrote
//   lanes.sum<T>(n, f)           // f(0) + ... + f(n - 1) in the CPU engine's order; every lane gets it
//   lanes.block_sum<T>(n, f)     // the same of at most kSumBlock terms
//   lanes.largest<T>(n, f)       // NaN does not count; -Inf of nothing
//
// The order of a sum is the CPU engine's: blocks of kSumBlock terms, term i of a block to lane i mod kLanes, lanes
// folded 8, 4, 2, 1, blocks pairwise like the carries of a binary counter. So sums have the CPU's bits.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"

namespace nanhunt::kernels::cuda {

inline constexpr int kLanes = 16;
inline constexpr std::int64_t kSumBlock = 1024;

// What one lane adds up of a block.
template <class T, class F>
NANHUNT_HOST_DEVICE inline T lane_sum(int lane, std::int64_t count, const F& f) {
  T sum{0};
  for (std::int64_t i = lane; i < count; i += kLanes) sum += f(i);
  return sum;
}

// Adds block sums pairwise.
template <class T>
class BlockSums {
 public:
  NANHUNT_HOST_DEVICE void add(T block) {
    int level = 0;
    for (std::uint64_t n = blocks_++; (n & 1) != 0; n >>= 1) block = partial_[level++] + block;
    partial_[level] = block;
  }
  NANHUNT_HOST_DEVICE T total() const {
    T sum{0};
    bool first = true;
    for (int level = 0; level < kLevels; ++level) {
      if ((blocks_ >> level & 1) == 0) continue;
      sum = first ? partial_[level] : partial_[level] + sum;
      first = false;
    }
    return sum;
  }

 private:
  static constexpr int kLevels = 40;  // 2^50 terms
  T partial_[kLevels];
  std::uint64_t blocks_ = 0;
};

// A whole sum by one set of lanes that can do blocks.
template <class T, class Lanes, class F>
NANHUNT_HOST_DEVICE inline T sum_of_blocks(const Lanes& lanes, std::int64_t count, const F& f) {
  if (count <= kSumBlock) return lanes.template block_sum<T>(count, f);
  BlockSums<T> sums;
  for (std::int64_t start = 0; start < count; start += kSumBlock) {
    const std::int64_t rest = count - start;
    sums.add(lanes.template block_sum<T>(rest < kSumBlock ? rest : kSumBlock,
                                         [&](std::int64_t i) { return f(start + i); }));
  }
  return sums.total();
}

}  // namespace nanhunt::kernels::cuda
