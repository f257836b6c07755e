// SPDX-License-Identifier: Apache-2.0
// What a learning rate finder makes of the losses of its ramp, by fastai's rule: a smoothed loss, where to stop, and
// what rate to train with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace nanhunt {

inline constexpr double kLossSmoothing = 0.98;  // share of the old average
inline constexpr double kLrDivergence = 4;      // a smoothed loss of so many times the best ends the ramp

// Exponential moving average without the bias of its start at 0.
class SmoothedLoss {
 public:
  double add(double loss);

 private:
  double average_ = 0, weight_ = 1;
};

struct LrPoint {
  std::uint32_t step = 0;
  double lr = 0, loss = 0, smoothed = 0;
};

class LrRange {
 public:
  // True where a finder stops: the smoothed loss is NaN, or above 4 times a best that is above 0.
  bool add(std::uint32_t step, double lr, double loss);
  const std::vector<LrPoint>& points() const { return points_; }
  double best() const { return best_; }

 private:
  SmoothedLoss smoothed_;
  double best_ = 0;
  std::vector<LrPoint> points_;
};

struct LrSuggestion {
  double steepest = 0;         // where the smoothed loss falls fastest
  double tenth_of_lowest = 0;  // a tenth of the rate with the lowest smoothed loss
};
// Without the first 10 points and the last 5, as fastai plots them; nothing where fewer than 2 are left.
std::optional<LrSuggestion> suggest_lr(std::span<const LrPoint> points);

}  // namespace nanhunt
