// SPDX-License-Identifier: Apache-2.0
// The rows of a training run without end, a few a step, with steps that go bad: cheap enough for a million steps.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::trace_testing {

struct LongRunOptions {
  std::uint32_t bad_every = 5000;     // on average; 1: every step
  std::uint32_t steps_a_batch = 500;
};

// A step: three ops over a weight that is rewritten, a frozen one, and temporaries that end; a mark, a scaler row now
// and then, the end of the step.
class LongRun {
 public:
  explicit LongRun(std::uint64_t seed, LongRunOptions options = {}) : random_(seed), options_(options) {}

  RecordBatch next_batch();
  std::uint32_t steps() const { return step_; }
  std::uint64_t ops() const { return seq_; }
  std::uint64_t values() const { return next_value_ - 1; }
  std::uint64_t other() const { return other_; }
  const std::vector<std::uint32_t>& bad_steps() const { return bad_steps_; }

 private:
  ValueId add_value(RecordBatch& batch, std::uint64_t storage, std::uint32_t version, std::uint64_t producer, bool bad);
  void add_op(RecordBatch& batch, StringId name, Phase phase, std::vector<ValueId> inputs, ValueId output);
  void add_step(RecordBatch& batch);

  std::mt19937_64 random_;
  LongRunOptions options_;
  std::uint32_t step_ = 0;
  std::uint64_t seq_ = 0, storage_ = 2, other_ = 0;
  ValueId next_value_ = 1, weight_ = 0, frozen_ = 0;
  std::vector<std::uint32_t> bad_steps_;
};

}  // namespace nanhunt::trace_testing
