// SPDX-License-Identifier: Apache-2.0
// The part of rule `underflow` that looks at what is computed around the sum over the ranks: a gradient divided by their
// number must still be a number of its format. Needs no failure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds: those of GradientUnderflow, of all gradients that a rank exchanges in a step.
class CommUnderflow {
 public:
  explicit CommUnderflow(const Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void on_step_end(std::uint32_t step);
  std::optional<Finding> finding() const;

 private:
  // Before the sum, or after it.
  struct Side {
    double lost = 0, considered = 0;  // of the step at hand
    std::uint32_t steps = 0, over = 0, dead = 0, run = 0, longest_run = 0, first_over = 0, last_over = 0;
    double sum_lost = 0;  // shares of the steps over
    OpRef at, first;      // that lost most in the step at hand; in the first step over
    ArgSnapshot output, first_output;
    std::vector<ArgSnapshot> inputs, first_inputs;
    std::int64_t most = 0, first_most = 0;
    double factor = 1, first_factor = 1;  // by which that op multiplied
  };

  const Names& names_;
  std::array<Side, 2> sides_;
  std::uint64_t came_from_ = kNoSeq;  // seq of the last call between ranks, or of what was made of its result
};

}  // namespace nanhunt::analyze
