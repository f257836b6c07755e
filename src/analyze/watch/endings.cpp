// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/endings.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

bool is_given_up(StepEnding how) { return how == StepEnding::kNextForward || how == StepEnding::kOptimizer; }

// A validation after the last step is not counted as a bad step of an earlier fault.
void leave_out(BadSteps& steps, std::uint32_t validation) {
  if (steps.last != validation || steps.first >= validation || steps.count < 2) return;
  --steps.last;
  --steps.count;
  steps.anew = std::min(steps.anew, steps.count);
  steps.unwatched = std::min(steps.unwatched, steps.count - steps.anew);
}

}  // namespace

void Endings::on_mark(const MarkRecord& mark) {
  // As hooks/torch/nanhunt/_tap/marks.py.
  constexpr std::string_view kLeftOut = "the loss of a batch without a backward";
  if (mark.kind != TensorRole::kLoss) return;
  with_loss_ = mark.step;
  if (names_.text(mark.path) == kLeftOut) without_batch_ = mark.step;
}

void Endings::on_last_validation(std::uint32_t step) {
  if (with_loss_ != step) last_validation_ = step;
}

void Endings::on_step_end(const StepRecord& step, bool bad) {
  ++steps_;
  const bool raised = step.ending == StepEnding::kException || step.ending == StepEnding::kOptimizer;
  exception_ = raised ? names_.text(step.message) : "";  // whoever caught it went on
  if (step.ending == StepEnding::kForward) return;
  if (step.ending == StepEnding::kOptimizer) {
    ++finished_;
    last_good_ = step.step;
    any_good_ = true;
    if (without_batch_ == step.step && endings_.size() < kMost) endings_[step.step] = {step.ending, "", true};
    return;
  }
  if (bad && step.ending == StepEnding::kNextForward) ++skipped_bad_;
  // Those that end a program are few, and what it was about.
  if (step.ending == StepEnding::kNextForward && endings_.size() >= kMost) {
    ++forgotten_;
  } else if (endings_.size() < 2 * kMost) {
    endings_[step.step] = {step.ending, names_.text(step.message), bad};
  } else {
    ++forgotten_;
  }
}

std::string Endings::sentence(std::uint32_t step, const Ending& ending) const {
  const std::string said = ending.message.empty() ? "" : fmt::format(" It said: \"{}\".", ending.message);
  switch (ending.how) {
    case StepEnding::kNextForward:
      return fmt::format("The program skipped this step: in {} of {} steps the next forward began before any optimizer.",
                         skipped_bad_, steps_);
    case StepEnding::kException:
      return fmt::format("The program stopped here, in step {}, with an exception.{}", step, said);
    case StepEnding::kExit:
      return fmt::format("The program stopped here: it ended itself in step {}.{}", step, said);
    case StepEnding::kOptimizer:
      return "The program left this batch out of its step: it took no gradients of its loss.";
    case StepEnding::kEnd:
    case StepEnding::kForward:
      break;
  }
  return fmt::format("Step {} is the last one of the run, and no optimizer came after it.{}", step, said);
}

std::uint64_t Endings::given_up_in(std::uint32_t first, std::uint32_t last) const {
  std::uint64_t count = 0;
  for (auto at = endings_.lower_bound(first); at != endings_.end() && at->first <= last; ++at)
    count += at->second.bad && is_given_up(at->second.how) ? 1 : 0;
  return count;
}

void Endings::conclude(std::vector<Finding>& findings, bool trained) const {
  for (Finding& f : findings) {
    if (last_validation_ && f.place.phase != Phase::kValidation) leave_out(f.bad_steps, *last_validation_);
    // A figure that only a validation shows is a warning, unless the program stops at it.
    if (f.severity != Severity::kFault && !f.figure) continue;
    const auto at = std::find_if(endings_.begin(), endings_.end(), [&](const auto& one) {
      return one.second.bad && one.first >= f.first_step && one.first <= f.last_step;
    });
    if (at == endings_.end()) continue;
    // Where a program ends in order, its last validation is what comes after the last optimizer.
    const bool of_outputs = std::all_of(f.sinks.begin(), f.sinks.end(), [](const std::string& sink) {
      return sink == sink_text(TensorRole::kOutput, "");
    });
    const bool validated = f.place.phase == Phase::kValidation || (f.cls == FindingClass::kBadInput && of_outputs);
    if ((validated || !trained) && at->second.how == StepEnding::kEnd) continue;
    if (f.figure && at->second.how != StepEnding::kException) continue;
    f.severity = Severity::kFault;
    const std::string text = sentence(at->first, at->second);
    // What it did at once comes first; that a later step was the last is no cause.
    const bool later = at->second.how == StepEnding::kEnd && f.first_step < at->first && !f.explanation.empty();
    f.explanation = later ? f.explanation + " " + text : f.explanation.empty() ? text : text + " " + f.explanation;
    // The program saw it and went on, and what came later was sound: it handles such steps by design.
    if (f.unfinished && given_up_in(f.bad_steps.first, f.bad_steps.last) >= f.bad_steps.count && any_good_ &&
        last_good_ > std::max(f.last_step, f.bad_steps.last))
      f.severity = Severity::kWarning;
  }
}

void Endings::fill_coverage(Coverage& coverage) const {
  coverage.exception = exception_;
  if (forgotten_ > 0)
    coverage.unwatched.push_back(fmt::format(
        "How {} ended: no optimizer ended them, and only the first {} of such steps are told apart.",
        count_of(static_cast<std::int64_t>(forgotten_), "further step"), kMost));
  for (auto at = endings_.rbegin(); at != endings_.rend(); ++at) {
    if (at->second.bad || at->second.how == StepEnding::kNextForward || at->second.message.empty()) continue;
    coverage.unwatched.push_back(fmt::format("What step {} would have done: {} ended it.", at->first,
                                             at->second.message));
    return;  // the last one is where the program stopped
  }
}

}  // namespace nanhunt::analyze
