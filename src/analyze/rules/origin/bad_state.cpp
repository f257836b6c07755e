// SPDX-License-Identifier: Apache-2.0
// bad_state: a parameter, optimizer state or buffer was not finite, and no watched op had made it so.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_bad_state(const Case& c) {
  if (c.birth.kind != BirthKind::kState) return std::nullopt;
  const ArgSnapshot& source = c.birth.source;
  const ValueStats& s = source.stats;
  const std::string what = sink_text(c.birth.role, c.module());
  Diagnosis d;
  const std::string count = bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel);
  if (c.birth.was_clean) {
    d.title = fmt::format("The {} became bad between two looks: {}", what, count);
    d.explanation =
        "It was finite when it was last seen, and no watched op has written it since: something unseen did, as code of "
        "the program between steps may.";
    d.sure = false;
  } else if (c.birth.into != 0) {
    d.title = fmt::format("What was loaded into the {} was bad: {}", what, count);
    d.explanation =
        "It was not finite when it was copied there, and no op that was watched made it: a bad checkpoint, or what the "
        "program made of it.";
  } else {
    d.title = fmt::format("The {} was bad from the start: {}", what, count);
    d.explanation =
        "It held non-finite numbers when it was first seen, before any op that was watched had used it: a bad checkpoint, "
        "or what the program made of it before the first step.";
  }
  if (s.first_nonfinite >= 0) {
    const LayoutRecord* layout = c.names.layout(source.layout);
    const auto coords = layout == nullptr ? std::vector<std::int64_t>{} : coords_of(s.first_nonfinite, layout->sizes);
    if (!coords.empty()) d.evidence.push_back(fmt::format("The first bad element is {}.", coords_text(coords)));
  }
  d.advice = {"reload-state"};
  return d;
}

}  // namespace

extern const Rule kBadStateRule{FindingClass::kBadState, diagnose_bad_state};

}  // namespace nanhunt::analyze
