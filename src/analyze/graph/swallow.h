// SPDX-License-Identifier: Apache-2.0
// An infinity of arithmetic that an op absorbed (x / Inf = 0, tanh, clamp): nothing downstream is bad, but information
// is gone. Followed to see whether what it fed is dead.
#pragma once

#include <cstdint>
#include <vector>

#include "src/analyze/graph/birth.h"

namespace nanhunt::analyze {

inline constexpr std::uint32_t kDeadSteps = 3;  // in a row to the end: constant, and without gradient

struct Swallow {
  OpRef at;             // the op that absorbed it, the first time
  ArgSnapshot output;   // of that op
  StepSet steps;        // in which it happened at this place
  // What that op gave out since, in calls with more than one element or 0.
  bool dead_now = false;
  std::uint32_t dead_steps = 0, last_step = 0;
  bool gradient_seen = false, gradient_alive = false;  // since it was last alive

  bool dead() const { return dead_now && dead_steps >= kDeadSteps && !gradient_alive; }
  void see_output(const ValueStats& stats, std::uint32_t step);
  void see_gradient(const ValueStats& stats);
};

}  // namespace nanhunt::analyze
