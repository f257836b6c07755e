// SPDX-License-Identifier: Apache-2.0
// Merging of partial statistics. Computing them is the kernels' work.
#include "nanhunt/tensor_stats.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace nanhunt {
namespace {

void merge_histogram(TensorStats& left, const TensorStats& right) {
  if (right.histogram.empty()) return;
  if (left.histogram.empty()) {
    left.histogram_min_exponent = right.histogram_min_exponent;
    left.histogram = right.histogram;
    return;
  }
  const auto end = [](const TensorStats& s) {
    return std::int64_t{s.histogram_min_exponent} + static_cast<std::int64_t>(s.histogram.size());
  };
  const std::int32_t first = std::min(left.histogram_min_exponent, right.histogram_min_exponent);
  const std::int64_t last = std::max(end(left), end(right));
  // Damaged traces may hold any exponent: bins beyond what a double can have are an error, not an allocation.
  if (last - first > 4096) throw std::invalid_argument("[merge] expected histograms of one number range");
  left.histogram.insert(left.histogram.begin(), static_cast<std::size_t>(left.histogram_min_exponent - first), 0);
  left.histogram.resize(static_cast<std::size_t>(last - first), 0);
  left.histogram_min_exponent = first;
  const auto shift = static_cast<std::size_t>(right.histogram_min_exponent - first);
  for (std::size_t i = 0; i < right.histogram.size(); ++i) left.histogram[i + shift] += right.histogram[i];
}

}  // namespace

void merge(TensorStats& left, const TensorStats& right) {
  if (left.level != right.level) throw std::invalid_argument("[merge] expected statistics of one level, got two");
  if (left.first_nonfinite < 0 && right.first_nonfinite >= 0) left.first_nonfinite = left.numel + right.first_nonfinite;
  left.any_nonfinite = left.any_nonfinite || right.any_nonfinite;

  // Extrema exist only where there is something to take them of, so they are read before the counts change.
  if (right.has_finite()) {
    left.min = left.has_finite() ? std::min(left.min, right.min) : right.min;
    left.max = left.has_finite() ? std::max(left.max, right.max) : right.max;
    left.amax = left.has_finite() ? std::max(left.amax, right.amax) : right.amax;
  }
  if (right.has_nonzero()) {
    left.amin_nonzero = left.has_nonzero() ? std::min(left.amin_nonzero, right.amin_nonzero) : right.amin_nonzero;
  }
  left.numel += right.numel;
  left.nan += right.nan;
  left.pos_inf += right.pos_inf;
  left.neg_inf += right.neg_inf;
  left.zero += right.zero;
  left.subnormal += right.subnormal;
  left.sum += right.sum;
  left.sum_sq += right.sum_sq;
  for (std::size_t i = 0; i < left.what_if.size(); ++i) {
    left.what_if[i].overflow += right.what_if[i].overflow;
    left.what_if[i].flush_to_zero += right.what_if[i].flush_to_zero;
    left.what_if[i].subnormal += right.what_if[i].subnormal;
  }
  merge_histogram(left, right);
}

}  // namespace nanhunt
