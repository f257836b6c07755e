// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/before_training.h"

#include <algorithm>

#include "src/core/ops/op_info.h"

namespace nanhunt::analyze {
namespace {

bool is_before(const Analysis& attempt) {
  return std::any_of(attempt.coverage.notes.begin(), attempt.coverage.notes.end(),
                     [](const auto& note) { return note.first == kBeforeTraining; });
}

// The program's data, as it was given, written or made ready; not what a model made of it.
bool is_of_data(const Finding& f) {
  if (f.cls == FindingClass::kBadInput || f.place.phase == Phase::kData) return true;
  return f.cls == FindingClass::kInvalid && f.place.op && op_info(*f.place.op).has(kWritesConstant);
}

// How many of its steps came before its training.
std::uint64_t first_steps(const Analysis& attempt) {
  const auto noted = attempt.coverage.notes.find(std::string(kFirstSteps));
  return noted == attempt.coverage.notes.end() ? 0 : noted->second;
}

// Data that were bad in steps before the training alone.
bool is_of_first_steps(const Finding& f, const Analysis& attempt) {
  const std::uint64_t steps = first_steps(attempt);
  return steps > 0 && is_of_data(f) && f.bad_steps.count > 0 && f.bad_steps.last < steps;
}

bool is_sound(const Analysis& attempt) {
  return std::all_of(attempt.findings.begin(), attempt.findings.end(),
                     [&](const Finding& f) { return f.severity == Severity::kInfo || is_of_first_steps(f, attempt); });
}

void excuse(std::vector<Analysis>& attempts, std::size_t trained) {
  const auto last = attempts.begin() + static_cast<std::ptrdiff_t>(std::min(trained, attempts.size()));
  if (!std::all_of(attempts.begin(), last, [](const Analysis& one) { return one.coverage.trained && is_sound(one); }))
    return;
  for (auto attempt = attempts.begin(); attempt != attempts.end(); ++attempt) {
    const bool before = attempt >= last && is_before(*attempt);
    for (Finding& f : attempt->findings) {
      if (f.severity == Severity::kInfo || !(before ? is_of_data(f) : is_of_first_steps(f, *attempt))) continue;
      f.severity = Severity::kInfo;
      f.evidence.emplace_back(
          "It was there before the training began, and none of it came to the training, which is sound.");
    }
  }
}

}  // namespace

void excuse_before_training(std::vector<Analysis>& attempts, std::size_t trained) {
  excuse(attempts, trained);
  for (Analysis& attempt : attempts) {  // they say when training began, not what was not watched
    attempt.coverage.notes.erase(std::string(kBeforeTraining));
    attempt.coverage.notes.erase(std::string(kFirstSteps));
  }
}

}  // namespace nanhunt::analyze
