// SPDX-License-Identifier: Apache-2.0
// Counterfactuals: the origin op, and the slice of ops that ends at it, computed again in its own format, in fp32 and
// in fp64. The rules are in this folder's README.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/recorder.h"
#include "src/hunt/op_runner.h"
#include "src/hunt/origin_plan.h"

namespace nanhunt::hunt {

struct CapturedOp {
  bool seen = false;
  std::vector<std::optional<Array>> inputs, outputs;  // as in PlannedOp; none: contents were gone
};

// What a run that was trained again, unchanged, showed.
struct Reenactment {
  std::optional<std::uint32_t> failed_at;  // first step that was not finite
  std::vector<CapturedOp> ops;             // as in the plan; empty without one
};

struct CaptureOptions {
  bool write = true;                             // files in the attempt's folder
  std::uint64_t max_bytes = 256u << 20;          // of all that is captured for one finding
};

// Leaves out the farthest ops of the slice until what is captured fits.
void limit_plan(OriginPlan& plan, std::uint64_t max_bytes);

// Checks that the replay met the same numbers, computes the origin again and hands ProbeEvents to the recorder.
// Whatever does not fit is said in the text of a probe that did not run, and nothing is concluded from it.
std::vector<ProbeRecord> probe_origin(const OriginPlan& plan, const Reenactment& seen, OpRunner& runner,
                                      Recorder& recorder);

// The inputs of the origin as op-SEQ.safetensors and the leaves of its slice as slice-SEQ.safetensors, in
// ATTEMPT/captures. One CaptureEvent for each.
Status write_captures(const OriginPlan& plan, const Reenactment& seen, Recorder& recorder);

}  // namespace nanhunt::hunt
