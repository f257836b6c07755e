// SPDX-License-Identifier: Apache-2.0
// Statistics of integer and bool tensors: zeros, extrema, sums. Never non-finite, no what-if, no binades.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/tensor_walk.h"

namespace nanhunt::kernels {
namespace {

struct Bool {
  unsigned char byte;
};
std::int64_t value_of(std::int64_t x) { return x; }
std::int64_t value_of(Bool x) { return x.byte != 0 ? 1 : 0; }

// |INT64_MIN| is one more than the largest int64.
std::uint64_t magnitude(std::int64_t x) {
  return x < 0 ? ~static_cast<std::uint64_t>(x) + 1 : static_cast<std::uint64_t>(x);
}

template <class T>
TensorStats scan(const TensorView& tensor, StatsLevel level) {
  const TensorWalk walk(tensor);
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  std::int64_t largest = std::numeric_limits<std::int64_t>::min();
  std::uint64_t min_nonzero = std::numeric_limits<std::uint64_t>::max();
  std::int64_t zeros = 0;
  Totals totals;
  walk.for_each_block([&](const Block& block, std::int64_t) {
    for (std::size_t i = 0; i < block.count; ++i) {
      T element;
      std::memcpy(&element, static_cast<const char*>(block.data) + i * sizeof element, sizeof element);
      const std::int64_t x = value_of(element);
      smallest = std::min(smallest, x);
      largest = std::max(largest, x);
      zeros += x == 0 ? 1 : 0;
      min_nonzero = std::min(min_nonzero, magnitude(x) - 1);  // 0 wraps around to the largest
      const auto real = static_cast<double>(x);
      totals.sum_lanes[i % kSumLanes] += real;
      totals.sum_sq_lanes[i % kSumLanes] += real * real;
    }
    fold_lanes(totals);
    return true;
  });

  TensorStats stats;
  stats.level = level;
  stats.numel = walk.count() * walk.repeats();
  if (level == StatsLevel::kFinite || stats.numel == 0) return stats;
  stats.zero = zeros * walk.repeats();
  stats.min = static_cast<double>(smallest);
  stats.max = static_cast<double>(largest);
  stats.amax = static_cast<double>(std::max(magnitude(smallest), magnitude(largest)));
  if (stats.has_nonzero()) stats.amin_nonzero = static_cast<double>(min_nonzero + 1);
  if (level >= StatsLevel::kSums) {
    stats.sum = (totals.sum + totals.sum_rest) * static_cast<double>(walk.repeats());
    stats.sum_sq = (totals.sum_sq + totals.sum_sq_rest) * static_cast<double>(walk.repeats());
  }
  return stats;
}

}  // namespace

TensorStats integer_stats(const TensorView& tensor, StatsLevel level) {
  switch (tensor.dtype) {
    case DType::kI64:
      return scan<std::int64_t>(tensor, level);
    case DType::kI32:
      return scan<std::int32_t>(tensor, level);
    case DType::kU8:
      return scan<std::uint8_t>(tensor, level);
    default:
      return scan<Bool>(tensor, level);
  }
}

}  // namespace nanhunt::kernels
