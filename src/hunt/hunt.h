// SPDX-License-Identifier: Apache-2.0
// Tries fixes on the very run that failed and records what came of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "nanhunt/recorder.h"
#include "src/hunt/counterfactual.h"

namespace nanhunt::hunt {

struct Fix {
  std::string id;           // "fp32-masters"
  std::string description;  // "fp32 master weights and optimizer state"
};

// A run that can be trained again from its start with one thing changed. Implemented above this layer
// (hooks/engine); never watched while it replays.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual std::vector<Fix> fixes() const = 0;
  // Trains afresh with the fix through `step` and `further_steps` more; stops at the first non-finite
  // loss, gradient, parameter or state. Updates are compared with those of an fp64 optimizer fed the same gradients.
  // What building or training throws comes out of here.
  virtual ExperimentRecord try_fix(const Fix& fix, std::uint32_t step, std::uint32_t further_steps) = 0;
  // Trains the run afresh as it was, up to the end of `step` or the first step that is not finite (but through the
  // plan's step), and captures what the plan names (nullptr: nothing). The default tells only whether it failed by
  // then.
  virtual Result<Reenactment> reenact(std::uint32_t step, const OriginPlan* plan);
  virtual OpRunner* op_runner() { return nullptr; }  // nullptr: nothing can be computed again
};

// A verified fix must train this many finite steps past the failure, with every parameter's update
// within this factor of an fp64 optimizer's, in length and in direction: the rule is in this folder's README.
inline constexpr std::uint32_t kFurtherSteps = 50;
inline constexpr double kUpdateFactorBound = 1.25;

struct Trials {
  std::vector<ExperimentRecord> experiments;  // in the order of the fixes
  std::vector<std::string> broken_off;        // "fp32-masters: why": threw, so nothing is known of the fix
  std::string not_tried;  // why no fix was tried: the unchanged run did not fail again; else empty
};

// Tries every fix for a failure at `step` and hands each outcome to the recorder. A trial that throws leaves no
// experiment: it shows neither that the fix cures nor that it does not.
Trials verify_fixes(Replay& replay, std::uint32_t step, Recorder& recorder);

// What the trace says so far, and what came of the fixes tried on account of it.
struct HuntOutcome {
  Analysis analysis;  // as it was before anything was tried
  std::vector<ProbeRecord> probes;
  Trials trials;
  std::string not_captured;  // why no captures were written although they were wanted; else empty
};

inline constexpr std::size_t kProbedFindings = 3;  // each takes a training of its own up to its step

struct HuntOptions {
  // Of a run of several ranks: its folder, which all have flushed. Where the headline is another rank's, nothing is done.
  std::string run_dir = {};
  std::uint32_t rank = 0;  // the recorder's
  bool try_fixes = true;
  CaptureOptions captures = {};
};

// Reads the attempt that `recorder` is still writing; if its headline is a fault or a warning, trains the run again as
// it was, computes its origin again from what that captures (and those of up to kProbedFindings findings), and tries
// every fix at the step of that finding. All of it is in the trace, so a later analysis has it.
Result<HuntOutcome> hunt_run(Replay& replay, Recorder& recorder, const HuntOptions& options = {});

}  // namespace nanhunt::hunt
