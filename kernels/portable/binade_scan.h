// SPDX-License-Identifier: Apache-2.0
// The histogram of an item's magnitudes: its elements once more, one at a time, in a loop that is the same for every
// floating format. Only tensors in which bad numbers began are read so.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"
#include "kernels/portable/tensor_stats_formats.h"
#include "kernels/portable/tensor_stats_scan.h"
#include "kernels/portable/tensor_stats_vectors.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kMostBinades = 2098;  // of fp64
// Finite elements below each threshold of their format, then those in each of its binades. Shared by a block.
struct BinadeCounts {
  std::uint32_t word[kThresholds + kMostBinades];

  NANHUNT_HOST_DEVICE void clear(std::uint32_t thread) {
    for (std::uint32_t i = thread; i < kThresholds + kMostBinades; i += kStatsThreads) word[i] = 0;
  }
};

// The constants of a format as numbers.
struct BinadeFormat {
  std::uint32_t bytes;
  int mantissa;
  std::uint64_t first_nonfinite;
  std::uint64_t thresholds[kThresholds];
};
NANHUNT_HOST_DEVICE inline BinadeFormat binade_format(DType dtype) {
  BinadeFormat f{};
  for_float_dtype(dtype, [&]<DType kDType>() {
    using Format = StatsFormat<kDType>;
    f.bytes = Format::kBytes;
    f.mantissa = Format::kMantissa;
    f.first_nonfinite = Format::kFirstNonfinite;
    for (int i = 0; i < kThresholds; ++i) f.thresholds[i] = Format::threshold(i);
  });
  return f;
}

// A finite magnitude that is not 0.
NANHUNT_HOST_DEVICE inline std::uint32_t binade_of(const BinadeFormat& f, std::uint64_t magnitude) {
  const auto exponent = static_cast<std::uint32_t>(magnitude >> f.mantissa);
  if (exponent != 0) return exponent - 1 + static_cast<std::uint32_t>(f.mantissa);
  return static_cast<std::uint32_t>(63 - leading_zeros(magnitude));
}

// One thread's share: elements of the item, 256 apart. Nothing for integers.
NANHUNT_HOST_DEVICE inline void count_binades(const DeviceStatsView& view, ItemRange item, std::uint32_t thread,
                                              BinadeCounts& counts) {
  const BinadeFormat f = binade_format(view.dtype);
  if (f.bytes == 0) return;
  const std::uint64_t lanes = kVectorBytes / f.bytes;
  const std::uint64_t sign = std::uint64_t{1} << (8 * f.bytes - 1);
  const std::uint64_t end = lesser(item.end * lanes, view.count);
  std::uint32_t below[kThresholds] = {};
  for (std::uint64_t i = item.begin * lanes + thread; i < end; i += kStatsThreads) {
    const std::uint64_t magnitude = load_element(address_of(view, f.bytes, i), f.bytes) & (sign - 1);
    if (magnitude >= f.first_nonfinite) continue;
    NANHUNT_UNROLL
    for (int t = 0; t < kThresholds; ++t) below[t] += magnitude < f.thresholds[t] ? 1 : 0;
    if (magnitude != 0) atomic_add(&counts.word[kThresholds + binade_of(f, magnitude)], 1u);
  }
  NANHUNT_UNROLL
  for (int t = 0; t < kThresholds; ++t) {
    if (below[t] != 0) atomic_add(&counts.word[t], below[t]);
  }
}

}  // namespace nanhunt::kernels::cuda
