// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/baselines/baselines.h"

namespace nanhunt::campaign {

std::span<const Baseline* const> all_baselines() {
  static const Baseline* const kAll[] = {&kFirstBadOp, &kCleanInBadOut, &kAnomalyMode, &kFirstBadModule,
                                         &kFirstBadOutput};
  return kAll;
}

Place place_of(const SeenOp& op) {
  return {op.step, op.phase, op.module.empty() ? std::nullopt : std::optional(op.module), op.op};
}

bool baseline_right(const Baseline& baseline, const Expected& expected, const std::optional<Place>& place) {
  if (!place) return false;
  Expected lenient = expected;
  if (!baseline.names_ops) lenient.op_scored = lenient.phase_scored = false;
  Answer answer;
  answer.given = true;
  answer.place = *place;
  return origin_right(lenient, answer);
}

}  // namespace nanhunt::campaign
