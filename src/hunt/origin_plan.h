// SPDX-License-Identifier: Apache-2.0
// What a replay has to look out for: the origin op of a finding and the ops that led to it, found in the trace and told
// by their place in the step, because a run that is trained again numbers nothing alike.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/hunt/op_runner.h"

namespace nanhunt::hunt {

inline constexpr std::size_t kMaxSliceOps = 16;  // the origin included

// Where an op stands: the n-th of its name, module and phase in a micro-batch of a step.
struct OpPosition {
  std::uint32_t micro_batch = 0;
  Phase phase = Phase::kForward;
  std::string module, op;
  std::uint32_t nth = 0;
  bool operator==(const OpPosition&) const = default;
};

struct PlannedValue {
  std::string slot;
  ArgRole role = ArgRole::kRead;
  ValueId value = 0;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> sizes;
  bool has_stats = false;
  TensorStats stats;
  int producer = -1;         // inputs: index into OriginPlan::ops of the op that made it, -1: none of them
  std::size_t output = 0;    // and which of its outputs it is
};

struct PlannedOp {
  std::uint64_t seq = kNoSeq;
  OpPosition at;
  std::vector<std::pair<std::string, double>> scalars;
  std::vector<PlannedValue> inputs, outputs;
  DType arithmetic = DType::kF32;  // in which it computed before it stored
};

struct OriginPlan {
  std::uint32_t step = 0;
  std::vector<PlannedOp> ops;  // the origin first, then nearest first: every one feeds an earlier one
  std::size_t bad_output = 0;  // of the origin
  std::int64_t flat_index = -1;  // of its first bad element
  // Outputs of other ops that ops of the plan overwrite: to be held on to, position and index of the output.
  std::vector<std::pair<OpPosition, std::size_t>> held;
};

// Reads the attempt's trace. None: the finding has no op whose bad output could be computed again; a failed Status says
// what is missing from the trace. `knows`: ops that can be computed again; others end a slice.
Result<std::optional<OriginPlan>> plan_origin(const std::string& attempt_dir, const Finding& finding,
                                              const std::function<bool(std::string_view)>& knows);

}  // namespace nanhunt::hunt
