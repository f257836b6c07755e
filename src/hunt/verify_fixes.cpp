// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/hunt.h"

#include <exception>
#include <utility>

namespace nanhunt::hunt {

Result<Reenactment> Replay::reenact(std::uint32_t step, const OriginPlan* /*plan*/) {
  Reenactment seen;
  if (!try_fix({"", "nothing changed"}, step, 0).finite) seen.failed_at = step;
  return seen;
}

Trials verify_fixes(Replay& replay, std::uint32_t step, Recorder& recorder) {
  Trials trials;
  for (const Fix& fix : replay.fixes()) {
    ExperimentRecord outcome;
    try {
      outcome = replay.try_fix(fix, step, kFurtherSteps);
    } catch (const std::exception& e) {  // the run itself is over and recorded: the other fixes may still help it
      trials.broken_off.push_back(fix.id + ": " + e.what());
      continue;
    }
    outcome.fix = fix.id;
    outcome.description = fix.description;
    outcome.step = step;
    // A factor below 1 (nothing was compared) or NaN proves nothing.
    outcome.verified = outcome.finite && outcome.further_steps >= kFurtherSteps && outcome.update_factor >= 1 &&
                       outcome.update_factor <= kUpdateFactorBound;
    recorder.on_experiment(outcome);
    trials.experiments.push_back(std::move(outcome));
  }
  return trials;
}

}  // namespace nanhunt::hunt
