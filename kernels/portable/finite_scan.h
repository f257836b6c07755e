// SPDX-License-Identifier: Apache-2.0
// A thread's scan of a work item for what is not finite, and for the largest magnitude among the rest: level kFinite of
// tensor_stats. It has neither sums, which take a device's fp64 units, nor counts of zeros and subnormals.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/portable/tensor_stats_scan.h"

namespace nanhunt::kernels::cuda {

// Finite numbers; +0 stands for what is not.
template <DType kDType>
class FiniteScan {
 public:
  using Format = StatsFormat<kDType>;
  using Code = std::conditional_t<Format::kBytes == 8, std::uint64_t, std::uint32_t>;

  // Lanes of 16 bits, two to a word.
  NANHUNT_HOST_DEVICE void take(const std::uint32_t (&words)[4]) {
    static_assert(Format::kBytes <= 2);
    NANHUNT_UNROLL
    for (const std::uint32_t word : words) largest_ = max_unsigned(largest_, word & ~kHighBits);
  }
  NANHUNT_HOST_DEVICE void take(const Vector& v) {
    if constexpr (Format::kBytes == 4) {
      NANHUNT_UNROLL
      for (const std::uint32_t word : v.words) largest_ = greater(largest_, word & 0x7fffffffu);
    } else {
      constexpr std::uint64_t kMagnitude = 0x7fffffffffffffffu;
      NANHUNT_UNROLL
      for (int i = 0; i < 4; i += 2) {
        largest_ = greater(largest_, (std::uint64_t{v.words[i + 1]} << 32 | v.words[i]) & kMagnitude);
      }
    }
  }

  // As a code of the format.
  NANHUNT_HOST_DEVICE std::int64_t largest() const {
    if constexpr (Format::kBytes <= 2) {
      const auto lanes = static_cast<std::uint32_t>(largest_);
      return static_cast<std::int64_t>(greater(lanes & 0xffffu, lanes >> 16) >> LaneFormat<kDType>::kShift);
    } else {
      return static_cast<std::int64_t>(largest_);
    }
  }

 private:
  Code largest_ = 0;
};

template <DType kDType>
NANHUNT_HOST_DEVICE inline void scan_finite(const DeviceStatsView& view, ItemRange item, std::uint32_t thread,
                                            StatsPartial& out) {
  Odd odd = {kNoIndex, 0, 0, 0, 0};
  FiniteScan<kDType> scan;
  for_each_vector(view, StatsFormat<kDType>::kBytes, item, thread,
                  [&](const Vector& v, std::uint64_t j, std::uint32_t valid) {
                    take_vector<kDType>(scan, view, v, j, valid, odd);
                  });
  out.largest = scan.largest();
  out.nan = odd.nan;
  out.pos_inf = odd.pos_inf;
  out.neg_inf = odd.neg_inf;
  out.first = odd.first;
}

}  // namespace nanhunt::kernels::cuda
