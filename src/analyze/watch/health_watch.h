// SPDX-License-Identifier: Apache-2.0
// The health of each step (HealthRecord), and bad steps whose ops the trace does not hold (UnheardRecord).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

inline constexpr std::uint32_t kGradientBit = role_bit(TensorRole::kBoundaryGradient);
inline constexpr std::uint32_t kLastingBits =
    role_bit(TensorRole::kParameter) | role_bit(TensorRole::kState) | role_bit(TensorRole::kBuffer);

class HealthWatch {
 public:
  explicit HealthWatch(const Names& names) : names_(names) {}

  void on_health(const HealthRecord& record);
  void on_unheard(const UnheardRecord& record);
  // Once the records of a step are all in and before the graph judges it. True: the step was bad, and no record of it
  // says so.
  bool on_step_end(const StepRecord& step, const StepOutcome& outcome, ValueGraph& graph);

  bool seen() const { return steps_ > 0; }
  // Of the step at hand, before it ends.
  bool only_gradients_are_bad(std::uint32_t step) const {
    return pending_ && pending_->step == step && (pending_->bad & kSinkBits) == kGradientBit;
  }
  bool gradients_are_bad(std::uint32_t step) const {
    return pending_ && pending_->step == step && (pending_->bad & kGradientBit) != 0;
  }
  std::uint64_t judged() const { return steps_; }  // steps
  // Of the step that ended last; nullptr: there is none of it.
  const HealthRecord* health() const { return now_ ? &*now_ : nullptr; }
  // The step that ended last had a bad output of a validation and no bad loss; gradients and parameters may be older.
  bool only_validation_was_bad() const {
    return now_ && (now_->bad & (role_bit(TensorRole::kOutput) | role_bit(TensorRole::kLoss))) == role_bit(TensorRole::kOutput);
  }
  // A mark of this step says what was bad by then, not where it came from.
  bool was_unheard(std::uint32_t step) const { return unheard_.contains(step); }

  // Bad steps in a row that no record explains.
  struct Riddle {
    std::uint32_t first = 0, last = 0;
    std::uint64_t count = 0;
    std::uint32_t bad = 0;      // of the first
    std::uint32_t all_bad = 0;
    std::string first_path;
    double scale = 1;
    bool held_back = true;  // all of them
    bool scaled = true;
    bool ended = false;     // a good step came after it
    double good_scale = 0;  // scale of that step
    std::string why;        // the ops of the first are not known; empty: nobody said

    bool local() const;  // more than gradients was bad, and what an optimizer makes of them: no reduction does that
  };
  const std::vector<Riddle>& riddles() const { return riddles_; }
  const std::map<std::uint32_t, std::string>& unheard() const { return unheard_; }  // by step: why

  // Steps in which parameters, state or buffers were bad.
  struct Harm {
    std::uint32_t bad = 0, tensors = 0;
    std::string first_path;
  };
  const std::map<std::uint32_t, Harm>& harms() const { return harms_; }  // by step

  void fill_coverage(Coverage& coverage, const std::string& level, bool level_helps, bool all_heard) const;

 private:
  static constexpr std::size_t kMaxUnheard = 4096, kMaxRiddles = 64, kMaxHarms = 4096;

  bool is_another(const Riddle& open) const;

  const Names& names_;
  std::uint64_t steps_ = 0, unheard_steps_ = 0;
  std::optional<HealthRecord> pending_, now_;
  std::map<std::uint32_t, std::string> unheard_;  // by step
  std::map<std::uint32_t, Harm> harms_;
  std::vector<Riddle> riddles_;
  std::uint64_t riddles_left_out_ = 0;
  bool open_ = false;  // the last riddle may go on
};

}  // namespace nanhunt::analyze
