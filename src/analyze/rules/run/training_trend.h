// SPDX-License-Identifier: Apache-2.0
// Training that fails though no number is bad: a loss that grows without end, a learning rate below 0, gradients that are
// all 0.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/watch/norm_watch.h"

namespace nanhunt::analyze {

// Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kStillGrows = 1.5;           // of the loss, over the last kCalmSteps steps
inline constexpr std::uint64_t kZeroSteps = 16;      // in a row with zero gradients alone, at the end
inline constexpr double kZeroShare = 0.5;            // of all steps
inline constexpr double kLearnt = 0.25;              // of the first loss: below that gradients may well be 0
inline constexpr double kZeroParameters = 0.75;      // share of parameters

class TrainingTrend {
 public:
  explicit TrainingTrend(const Names& names) : names_(names) {}
  // Of a step that an optimizer ended. `gradient`: the norm of all gradients; NaN: not known.
  void on_step_end(std::uint32_t step, double loss, double gradient, double lr);
  // Norms of the gradients of the last steps, which are written where most of them are 0.
  void on_norm(const NormRecord& record);
  std::vector<Finding> findings() const;

 private:
  bool grows() const;
  Finding growing() const;
  Finding negative_lr() const;
  Finding all_zero() const;
  std::optional<Finding> mostly_zero() const;

  static constexpr std::size_t kMaxParameters = 1u << 14;

  const Names& names_;
  std::uint64_t steps_ = 0;
  double calm_loss_ = 0;          // largest magnitude of the first kCalmSteps losses
  std::uint32_t calm_until_ = 0;  // the last step whose loss was no larger
  std::array<double, 2 * kCalmSteps> last_{};  // losses, as a ring
  std::uint32_t last_step_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  std::uint64_t negative_lr_steps_ = 0;
  std::uint32_t negative_lr_from_ = 0, negative_lr_to_ = 0;
  double lowest_lr_ = 0;
  std::uint64_t zero_steps_ = 0;  // in a row with zero gradients alone, up to the last
  std::uint32_t zero_from_ = 0;
  struct LastNorms {
    std::uint32_t seen = 0, nonzero = 0;  // one past the last step with a norm, and with one other than 0
  };
  std::map<StringId, LastNorms> last_norms_;  // by parameter
  std::set<std::uint32_t> norm_steps_;
};

}  // namespace nanhunt::analyze
