// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/lr_range.h"

#include <cmath>

namespace nanhunt {
namespace {

constexpr std::size_t kSkippedFirst = 10, kSkippedLast = 5;

}  // namespace

double SmoothedLoss::add(double loss) {
  average_ = kLossSmoothing * average_ + (1 - kLossSmoothing) * loss;
  weight_ *= kLossSmoothing;
  return average_ / (1 - weight_);
}

bool LrRange::add(std::uint32_t step, double lr, double loss) {
  const double smoothed = smoothed_.add(loss);
  if (points_.empty() || smoothed < best_) best_ = smoothed;
  points_.push_back({step, lr, loss, smoothed});
  // fastai compares with any best; below 0 each loss is above 4 times it, and its finder stops at once.
  return std::isnan(smoothed) || (best_ > 0 && smoothed > kLrDivergence * best_);
}

std::optional<LrSuggestion> suggest_lr(std::span<const LrPoint> points) {
  if (points.size() < kSkippedFirst + kSkippedLast + 2) return std::nullopt;
  const std::span<const LrPoint> shown = points.subspan(kSkippedFirst, points.size() - kSkippedFirst - kSkippedLast);
  const auto loss = [&](std::size_t i) { return shown[i].smoothed; };
  std::optional<double> steepest, lowest;
  LrSuggestion out;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    // Central differences, one-sided at the ends.
    const std::size_t before = i == 0 ? 0 : i - 1, after = i + 1 == shown.size() ? i : i + 1;
    const double slope = (loss(after) - loss(before)) / static_cast<double>(after - before);
    if (std::isfinite(slope) && (!steepest || slope < *steepest)) {
      steepest = slope;
      out.steepest = shown[i].lr;
    }
    if (std::isfinite(loss(i)) && (!lowest || loss(i) < *lowest)) {
      lowest = loss(i);
      out.tenth_of_lowest = shown[i].lr / 10;
    }
  }
  if (!steepest || !lowest) return std::nullopt;
  return out;
}

}  // namespace nanhunt
