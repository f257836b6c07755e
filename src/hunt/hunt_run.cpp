// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "src/hunt/hunt.h"

namespace nanhunt::hunt {

Result<HuntOutcome> hunt_run(Replay& replay, Recorder& recorder) {
  if (Status flushed = recorder.flush(); !flushed) return flushed;
  auto analysis = analyze_run(recorder.attempt_dir());
  if (!analysis) return analysis.status();
  HuntOutcome outcome{.analysis = std::move(*analysis), .trials = {}};
  const std::vector<Finding>& findings = outcome.analysis.findings;
  if (!findings.empty() && findings.front().severity != Severity::kInfo) {
    outcome.trials = verify_fixes(replay, findings.front().place.step, recorder);
  }
  return outcome;
}

}  // namespace nanhunt::hunt
