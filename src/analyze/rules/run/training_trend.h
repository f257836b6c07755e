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
inline constexpr std::size_t kComparedSteps = kCalmSteps;  // at the beginning, and at the end, whose losses are compared
inline constexpr std::uint64_t kUnmovedSteps = 16;    // in a row without any gradient, at the end
inline constexpr double kUnmovedShare = 0.5;          // of all steps
inline constexpr double kUnmovedParameters = 0.75;    // share of parameters

class TrainingTrend {
 public:
  explicit TrainingTrend(const Names& names) : names_(names) {}
  // Of a step that an optimizer ended. `gradient`: the norm of all gradients; NaN: not known.
  void on_step_end(std::uint32_t step, double loss, double gradient, double lr);
  // Norms of the gradients of the last steps, which are written where most of them are 0.
  void on_norm(const NormRecord& record);
  std::vector<Finding> findings() const;

 private:
  double first_largest() const;
  double last_smallest() const;
  Finding growing() const;
  Finding climbing() const;
  Finding dead() const;
  std::optional<Finding> mostly_dead() const;

  static constexpr std::size_t kMaxParameters = 1u << 14;

  const Names& names_;
  std::uint64_t steps_ = 0;
  std::array<double, kComparedSteps> first_{}, last_{};  // magnitudes of losses; `last_`: a ring
  std::uint32_t last_step_ = 0;
  double first_loss_ = 0, last_loss_ = 0;
  std::uint64_t climbs_ = 0;  // steps with a learning rate below 0
  std::uint32_t climbs_from_ = 0, climbs_to_ = 0;
  double lowest_lr_ = 0;
  std::uint64_t dead_ = 0;    // steps in a row without any gradient, up to the last
  std::uint32_t dead_from_ = 0;
  std::map<StringId, std::uint32_t> moved_;  // by parameter: one past the last step in which its gradient was not 0
  std::set<std::uint32_t> norm_steps_;
};

}  // namespace nanhunt::analyze
