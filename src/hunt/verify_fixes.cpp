// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/hunt.h"

namespace nanhunt::hunt {

std::vector<ExperimentRecord> verify_fixes(Replay& replay, std::uint32_t step, Recorder& recorder) {
  std::vector<ExperimentRecord> outcomes;
  for (const Fix& fix : replay.fixes()) {
    ExperimentRecord outcome = replay.try_fix(fix, step, kFurtherSteps);
    outcome.fix = fix.id;
    outcome.description = fix.description;
    outcome.step = step;
    // A factor below 1 (nothing was compared) or NaN proves nothing.
    outcome.verified = outcome.finite && outcome.further_steps >= kFurtherSteps && outcome.update_factor >= 1 &&
                       outcome.update_factor <= kUpdateFactorBound;
    recorder.on_experiment(outcome);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace nanhunt::hunt
