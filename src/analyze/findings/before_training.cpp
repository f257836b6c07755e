// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/before_training.h"

#include <algorithm>

#include "src/core/ops/op_info.h"

namespace nanhunt::analyze {
namespace {

bool is_before(const Analysis& attempt) {
  return std::any_of(attempt.coverage.notes.begin(), attempt.coverage.notes.end(),
                     [](const auto& note) { return note.first.starts_with(kBeforeTraining); });
}

// The program's data, as it was given, written or made ready; not what a model made of it.
bool is_of_data(const Finding& f) {
  if (f.cls == FindingClass::kBadInput || f.place.phase == Phase::kData) return true;
  return f.cls == FindingClass::kInvalid && f.place.op && op_info(*f.place.op).has(kWritesConstant);
}

bool is_sound(const Analysis& attempt) {
  return std::all_of(attempt.findings.begin(), attempt.findings.end(),
                     [](const Finding& f) { return f.severity == Severity::kInfo; });
}

}  // namespace

void excuse_before_training(std::vector<Analysis>& attempts, std::size_t trained) {
  const auto last = attempts.begin() + static_cast<std::ptrdiff_t>(std::min(trained, attempts.size()));
  if (!std::all_of(attempts.begin(), last, [](const Analysis& one) { return one.coverage.trained && is_sound(one); }))
    return;
  for (auto attempt = last; attempt != attempts.end(); ++attempt) {
    if (!is_before(*attempt)) continue;
    for (Finding& f : attempt->findings) {
      if (f.severity == Severity::kInfo || !is_of_data(f)) continue;
      f.severity = Severity::kInfo;
      f.evidence.emplace_back(
          "It was there before the training began, and none of it came to the training, which is sound.");
    }
  }
}

}  // namespace nanhunt::analyze
