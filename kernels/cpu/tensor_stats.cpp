// SPDX-License-Identifier: Apache-2.0
// compute_stats: walks the view, hands blocks to the best kernel, turns totals into statistics.
#include "nanhunt/tensor_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/tensor_stats_block.h"
#include "kernels/cpu/tensor_walk.h"

namespace nanhunt {
namespace kernels {
namespace {

// total + rest grows by `value` with the rounding error kept in rest (two-sum).
void add_compensated(double& total, double& rest, double value) {
  const double sum = total + value;
  if (std::isfinite(sum)) {
    const double virtual_value = sum - total;
    rest += (total - (sum - virtual_value)) + (value - virtual_value);
  }
  total = sum;
}

double fold(double* lanes) {
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  const double folded = lanes[0];
  for (int i = 0; i < kSumLanes; ++i) lanes[i] = 0;
  return folded;
}

// fp64 only: partial sums left the range of double, and the plain sum may even be Inf - Inf. Numbers scaled
// by 2^-64 cannot overflow however many they are; the result is finite or the infinity it should be.
double sum_scaled(const TensorWalk& walk) {
  double total = 0;
  double rest = 0;
  walk.for_each_block([&](const Block& block, std::int64_t) {
    double lanes[kSumLanes] = {};
    for (std::size_t i = 0; i < block.count; ++i) {
      double value = 0;
      std::memcpy(&value, static_cast<const char*>(block.data) + i * sizeof value, sizeof value);
      if (std::isfinite(value)) lanes[i % kSumLanes] += value * 0x1p-64;
    }
    add_compensated(total, rest, fold(lanes));
    return true;
  });
  return (total + rest) * 0x1p64;
}

double value_of(DType dtype, std::uint64_t code) { return load_as_f64(dtype, &code); }

void finish_extrema(const FormatCodes& f, const Totals& totals, TensorStats& stats) {
  const double amin = totals.min_nonzero != ~std::uint64_t{0} ? value_of(f.dtype, totals.min_nonzero) : 0;
  stats.amin_nonzero = amin;
  // No value with the sign bit clear: the largest is the negative one nearest to zero. And the other way round.
  const double nearest = totals.zero > 0 ? 0 : amin;
  const auto magnitude = [&](std::int64_t code) { return value_of(f.dtype, static_cast<std::uint64_t>(code)); };
  if (totals.max_positive < 0 && totals.max_negative < 0) return;
  stats.amax = magnitude(std::max(totals.max_positive, totals.max_negative));
  stats.max = (totals.max_positive >= 0 ? magnitude(totals.max_positive) : -nearest) + 0.0;  // + 0.0: never -0
  stats.min = (totals.max_negative >= 0 ? -magnitude(totals.max_negative) : nearest) + 0.0;
}

// Bins without anything at either end are left out.
void finish_histogram(const FormatCodes& f, const std::int64_t* binades, std::int64_t repeats, TensorStats& stats) {
  std::size_t first = 0;
  auto last = static_cast<std::size_t>(f.binades());
  while (first < last && binades[first] == 0) ++first;
  while (last > first && binades[last - 1] == 0) --last;
  if (first == last) return;
  const int lowest = 1 - format_limits(f.dtype).exponent_bias - f.mantissa_bits;
  stats.histogram_min_exponent = lowest + static_cast<int>(first);
  stats.histogram.assign(binades + first, binades + last);
  for (std::int64_t& bin : stats.histogram) bin *= repeats;
}

double sum_of(const TensorWalk& walk, StatsLevel level, const Totals& totals) {
  if (level < StatsLevel::kSums) return 0;
  const double sum = totals.sum + totals.sum_rest;
  return (std::isfinite(sum) ? sum : sum_scaled(walk)) * static_cast<double>(walk.repeats());
}

TensorStats floating_stats(const StatsKernel& kernel, const TensorView& tensor, StatsLevel level) {
  const FormatCodes& f = format_codes(tensor.dtype);
  const TensorWalk walk(tensor);
  std::int64_t first = -1;
  TensorStats stats;

  if (level == StatsLevel::kFinite) {
    walk.for_each_block([&](const Block& block, std::int64_t begin) {
      if (!kernel.any_nonfinite(block)) return true;
      first = walk.logical_index(begin + first_nonfinite(tensor.dtype, block, 0));
      return false;
    });
    stats.numel = walk.count() * walk.repeats();
  } else {
    Totals totals;
    std::vector<std::int64_t> binades;
    if (level >= StatsLevel::kHistogram) {
      binades.resize(static_cast<std::size_t>(f.binades()));
      totals.binades = binades.data();
    }
    walk.for_each_block([&](const Block& block, std::int64_t begin) {
      kernel.scan(block, level, totals);
      if (level >= StatsLevel::kSums) fold_lanes(totals);
      if (first < 0 && totals.nonfinite() > 0)
        first = walk.logical_index(begin + first_nonfinite(tensor.dtype, block, 0));
      return true;
    });
    stats = finish_totals(f, walk.count(), walk.repeats(), level, totals, sum_of(walk, level, totals));
  }
  stats.level = level;
  stats.first_nonfinite = first;
  stats.any_nonfinite = first >= 0;
  return stats;
}

}  // namespace

void fold_lanes(Totals& totals) {
  add_compensated(totals.sum, totals.sum_rest, fold(totals.sum_lanes));
  add_compensated(totals.sum_sq, totals.sum_sq_rest, fold(totals.sum_sq_lanes));
}

TensorStats finish_totals(const FormatCodes& f, std::int64_t count, std::int64_t repeats, StatsLevel level,
                          const Totals& totals, double sum) {
  TensorStats stats;
  stats.numel = count * repeats;
  stats.nan = totals.nan * repeats;
  stats.pos_inf = totals.pos_inf * repeats;
  stats.neg_inf = totals.neg_inf * repeats;
  stats.zero = totals.zero * repeats;
  stats.subnormal = totals.subnormal * repeats;
  finish_extrema(f, totals, stats);
  if (level >= StatsLevel::kSums) {
    stats.sum = sum;
    stats.sum_sq = (totals.sum_sq + totals.sum_sq_rest) * static_cast<double>(repeats);
  }
  if (level >= StatsLevel::kWhatIf) {
    const std::int64_t finite = count - totals.nonfinite();
    for (std::size_t i = 0; i < stats.what_if.size(); ++i) {
      const std::int64_t* below = totals.below + 3 * i;
      stats.what_if[i].flush_to_zero = (below[0] - totals.zero) * repeats;
      stats.what_if[i].subnormal = (below[1] - below[0]) * repeats;
      stats.what_if[i].overflow = (finite - below[2]) * repeats;
    }
  }
  if (totals.binades != nullptr) finish_histogram(f, totals.binades, repeats, stats);
  return stats;
}

const StatsKernel& stats_kernel(DType dtype, Simd simd) {
  const StatsKernel* kernel = nullptr;
  if (simd == Simd::kAvx2) kernel = stats_kernel_avx2(dtype);
  if (simd == Simd::kAvx512) kernel = stats_kernel_avx512(dtype);
  return kernel != nullptr ? *kernel : stats_kernel_scalar(dtype);
}

TensorStats compute_stats_on(Simd simd, const TensorView& tensor, StatsLevel level) {
  if (!is_floating(tensor.dtype)) return integer_stats(tensor, level);
  return floating_stats(stats_kernel(tensor.dtype, simd), tensor, level);
}

}  // namespace kernels

TensorStats compute_stats(const TensorView& tensor, StatsLevel level) {
  return kernels::compute_stats_on(kernels::active_simd(), tensor, level);
}

}  // namespace nanhunt
