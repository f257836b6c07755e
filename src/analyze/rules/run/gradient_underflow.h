// SPDX-License-Identifier: Apache-2.0
// The part of rule `underflow` that looks at backward: gradients that a 16-bit format stores as 0 or as subnormal,
// which loss scaling prevents. Needs no failure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kLostGradients = 0.1;       // share of a layer's gradients stored as 0 though they are not
inline constexpr double kTinyGradients = 0.5;       // share stored as 0 though they are not, or as subnormal
// in a row, or more than half of all, in which most layers are past both
inline constexpr std::uint32_t kLostSteps = 5;
inline constexpr double kAllLost = 0.99;            // training stands still

class GradientUnderflow {
 public:
  explicit GradientUnderflow(Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void on_step_end(std::uint32_t step, double scale);
  std::optional<Finding> finding() const;

 private:
  static constexpr std::size_t kMaxLayers = 2048;
  static constexpr double kUnmeasurable = 0.9;  // more exact zeros than this leave too little to judge by

  struct Worst {  // the op that lost most values at once
    OpRef at;
    ArgSnapshot output;
    std::vector<ArgSnapshot> inputs;
    std::int64_t lost = 0;
    void take(const OpInView& op, std::size_t made, std::int64_t count);
  };
  struct Layer {
    StringId module = 0;
    DType dtype = DType::kF16;
    double lost = 0, tiny = 0, considered = 0;  // of the step at hand
    bool starved = false, fed = false;          // of the step at hand: every gradient that came in was 0; some was not
    double drained = 0;  // of the step at hand: share of zeros where nearly all that came in was 0
    std::uint32_t measured = 0, over = 0, dead = 0, first_over = 0;
    double worst_lost = 0, sum_lost = 0, sum_tiny = 0;
    Worst first;  // of the first step past the thresholds
    Worst worst;  // of the run
  };
  // An upper bound of the share of zeros that the output has because of zeros in the inputs; nullopt: not known.
  std::optional<double> exact_zeros(const OpInView& op, std::size_t output) const;
  Layer* layer_of(StringId module);

  Names& names_;
  std::map<StringId, std::size_t> index_;
  std::vector<Layer> layers_;
  std::uint32_t steps_ = 0, steps_over_ = 0, steps_dead_ = 0, last_over_ = 0;
  std::uint32_t run_ = 0, longest_run_ = 0;  // of steps over
  double largest_scale_ = 0;  // of the steps over
};

}  // namespace nanhunt::analyze
