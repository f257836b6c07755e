// SPDX-License-Identifier: Apache-2.0
// What should be said of a run, what was said, and whether that is right.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/campaign/witness.h"

namespace nanhunt::campaign {

struct Expected {
  FindingClass cls = FindingClass::kOverflow;
  Place place;
  std::vector<std::string> modules;  // any of these will do; empty: place.module
  bool module_scored = true, op_scored = true, phase_scored = true, step_scored = true;
};
// None where the planted op never went bad, or another op did before: the fault did not come about as planned.
std::optional<Expected> expect(const Target& target, const Plan& plan, const Rig& rig, const Witness& witness,
                               const RunLog& log);

struct Answer {
  bool given = false;
  Place place;
  std::optional<FindingClass> cls;
  bool fault = false;  // not only a warning
  std::string headline;
};
Answer answer_of(const Analysis& analysis);

bool origin_right(const Expected& expected, const Answer& answer);
bool class_right(const Expected& expected, const Answer& answer);
// What only flipped once is gone when the sentinel runs the step again: that it is, and in which step, is all there
// is to
// find.
bool said_not_reproducible(const Expected& expected, const Answer& answer);
std::string text_of(const Place& place);

}  // namespace nanhunt::campaign
