// SPDX-License-Identifier: Apache-2.0
// A learning rate finder at work: steps whose rate grew by one factor each, far. What overflows there once the loss has
// diverged is what the ramp is there to find. Thresholds: src/analyze/rules/GUIDE.md.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

inline constexpr std::size_t kRampSteps = 20;    // in a row at least
inline constexpr double kRampFactor = 100;       // of the rate, from the first to the last of them
inline constexpr double kRampTolerance = 1e-6;   // by which factors may differ
inline constexpr double kRestoredLoss = 2;       // times the ramp's first loss, at most
inline constexpr std::uint64_t kFinderBadSteps = 8;  // with a loss that is not finite, in a ramp whose weights were not put back

class LrRampWatch {
 public:
  void on_step_end(std::uint32_t step, double lr, double loss);

  std::optional<LrRamp> ramp() const;
  // Faults that began past the divergence of the ramp become one finding about it: no fault where what it made of the
  // weights was not trained on.
  void conclude(std::vector<Finding>& findings) const;

 private:
  static constexpr std::size_t kMaxPoints = 4096;

  bool is_ramp() const;
  void add(std::uint32_t step, double lr, double loss);
  bool had_diverged_by(std::uint32_t step) const;
  double rate_at(std::uint32_t step) const;  // a step of the ramp
  bool is_sound(double loss) const;  // as before the ramp
  bool was_left() const;             // and what it had made of the weights was trained on
  bool is_warm_up() const;
  bool ran_on() const;  // far past its first bad loss, and nothing was put back: a schedule, no finder

  LrRange range_;
  std::size_t count_ = 0;
  std::uint32_t first_step_ = 0, last_step_ = 0;
  double first_lr_ = 0, last_lr_ = 0, last_loss_ = 0, factor_ = 0;
  std::optional<std::uint32_t> stops_at_;
  bool ended_ = false, came_back_ = false;  // `came_back_`: a loss after it was as before
  std::uint64_t steps_after_ = 0, bad_steps_ = 0;  // `bad_steps_`: of the ramp, with a loss that is not finite
  double loss_after_ = 0, lr_after_ = 0;  // of the first of them
};

}  // namespace nanhunt::analyze
