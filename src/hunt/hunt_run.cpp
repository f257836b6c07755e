// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <exception>
#include <utility>

#include "src/hunt/hunt.h"

namespace nanhunt::hunt {
namespace {

// Did the run, as the finding tells it, leave numbers that are not finite where a replay looks for them? A gradient
// that a loss scaler kept from doing harm is none of them.
bool was_not_finite(const Finding& finding, bool scaled) {
  return finding.severity == Severity::kFault && finding.bad_elements > 0 &&
         std::any_of(finding.sinks.begin(), finding.sinks.end(),
                     [&](const std::string& sink) { return !scaled || !sink.starts_with("gradient"); });
}

std::optional<OriginPlan> plan_for(Replay& replay, Recorder& recorder, const Finding& finding,
                                   std::uint64_t max_bytes) {
  OpRunner* runner = replay.op_runner();
  if (runner == nullptr) return std::nullopt;
  auto plan = plan_origin(recorder.attempt_dir(), finding, [&](std::string_view op) { return runner->knows(op); });
  // Without a plan nothing is computed again, and the finding stays as sure as it was.
  if (!plan || !*plan) return std::nullopt;
  limit_plan(**plan, max_bytes);
  if ((*plan)->ops.empty()) return std::nullopt;
  return std::move(*plan);
}

// Captures and probes of one finding, from a run that was trained again.
void prove(const OriginPlan& plan, const Reenactment& seen, Replay& replay, Recorder& recorder,
           const HuntOptions& options, HuntOutcome& outcome) {
  if (options.captures.write) {
    if (Status written = write_captures(plan, seen, recorder); !written) outcome.not_captured = written.message();
  }
  for (ProbeRecord& probe : probe_origin(plan, seen, *replay.op_runner(), recorder))
    outcome.probes.push_back(std::move(probe));
}

// Findings after the headline: what cannot be computed again stays as sure as it was.
void prove_others(Replay& replay, Recorder& recorder, const HuntOptions& options, HuntOutcome& outcome) {
  const std::vector<Finding>& findings = outcome.analysis.findings;
  for (std::size_t i = 1; i < std::min(findings.size(), kProbedFindings); ++i) {
    if (findings[i].severity == Severity::kInfo || findings[i].place.seq == findings[0].place.seq) continue;
    if (!options.run_dir.empty() && findings[i].rank != options.rank) continue;
    const auto plan = plan_for(replay, recorder, findings[i], options.captures.max_bytes);
    if (!plan) continue;
    try {
      if (auto seen = replay.reenact(plan->step, &*plan)) prove(*plan, *seen, replay, recorder, options, outcome);
    } catch (const std::exception&) {
      return;  // training past the headline's failure broke off: nothing is known of what came later
    }
  }
}

}  // namespace

Result<HuntOutcome> hunt_run(Replay& replay, Recorder& recorder, const HuntOptions& options) {
  if (Status flushed = recorder.flush(); !flushed) return flushed;
  auto analysis = analyze_run(options.run_dir.empty() ? recorder.attempt_dir() : options.run_dir);
  if (!analysis) return analysis.status();
  HuntOutcome outcome{.analysis = std::move(*analysis), .probes = {}, .trials = {}, .not_captured = {}};
  if (outcome.analysis.findings.empty()) return outcome;
  const Finding& finding = outcome.analysis.findings.front();
  const bool of_another = !options.run_dir.empty() && finding.rank != options.rank;
  if (finding.severity == Severity::kInfo || of_another) return outcome;
  const std::uint32_t step = finding.place.step, last = std::max(step, finding.first_step);
  const auto plan = plan_for(replay, recorder, finding, options.captures.max_bytes);
  const bool must_fail = was_not_finite(finding, outcome.analysis.scaler.has_value());
  std::optional<Reenactment> seen;
  if (plan || (must_fail && options.try_fixes)) {
    try {
      if (auto result = replay.reenact(last, plan ? &*plan : nullptr)) seen = std::move(*result);
    } catch (const std::exception& e) {
      outcome.trials.not_tried = std::string("the unchanged run could not be trained again: ").append(e.what());
      return outcome;
    }
  }
  if (seen && plan) prove(*plan, *seen, replay, recorder, options, outcome);
  prove_others(replay, recorder, options, outcome);
  if (!options.try_fixes) return outcome;
  // The control: a fix cures nothing where the unchanged run does not fail again.
  if (must_fail && seen && (!seen->failed_at || *seen->failed_at < step)) {
    outcome.trials.not_tried =
        !seen->failed_at
            ? "trained again unchanged, the run did not fail, so no fix could be shown to cure it"
            : "trained again unchanged, the run failed earlier, so no fix could be shown to cure this failure";
    return outcome;
  }
  outcome.trials = verify_fixes(replay, step, recorder);
  return outcome;
}

}  // namespace nanhunt::hunt
