// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/score.h"

#include <fmt/format.h>

namespace nanhunt::campaign {

std::optional<Finding> headline_of(const Analysis& analysis) {
  for (const Finding& f : analysis.findings) {
    if (f.id == analysis.verdict.origin.value_or("") && f.severity != Severity::kInfo) return f;
  }
  return std::nullopt;
}

bool origin_right(const Expected& e, const std::optional<Finding>& a) {
  const auto same_name = [](const std::optional<std::string>& wanted, const std::optional<std::string>& got) {
    return !wanted || *wanted == got.value_or("");
  };
  return a && a->place.step == e.step.value_or(a->place.step) && a->place.phase == e.phase.value_or(a->place.phase) &&
         same_name(e.module, a->place.module) && same_name(e.op, a->place.op);
}

bool class_right(const Expected& e, const std::optional<Finding>& a) { return a && a->cls == e.cls; }

std::string text_of(const std::optional<Finding>& a) {
  if (!a) return "nothing";
  return fmt::format("{} step {} {} {} {}: {}", finding_class_name(a->cls), a->place.step, phase_name(a->place.phase),
                     a->place.module.value_or("-"), a->place.op.value_or("-"), a->title);
}

}  // namespace nanhunt::campaign
