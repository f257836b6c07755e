// SPDX-License-Identifier: Apache-2.0
// The rules of other tools, over the same records. Each gives a place, or nothing; none gives a class.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tests/campaign/records.h"
#include "tests/campaign/score.h"

namespace nanhunt::campaign {

struct Baseline {
  std::string_view name, rule;
  std::optional<Place> (*find)(const std::vector<SeenOp>& ops);
  bool names_ops;  // false: only modules; op and phase are not held against it
};
extern const Baseline kFirstBadOp, kCleanInBadOut, kAnomalyMode, kFirstBadModule, kFirstBadOutput;
std::span<const Baseline* const> all_baselines();

Place place_of(const SeenOp& op);
bool baseline_right(const Baseline& baseline, const Expected& expected, const std::optional<Place>& place);

}  // namespace nanhunt::campaign
