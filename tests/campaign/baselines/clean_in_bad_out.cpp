// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/baselines/baselines.h"

namespace nanhunt::campaign {
namespace {

std::optional<Place> find(const std::vector<SeenOp>& ops) {
  for (const SeenOp& op : ops) {
    if (!op.bad_in && op.bad_out) return place_of(op);
  }
  return std::nullopt;
}

}  // namespace

extern const Baseline kCleanInBadOut{
    "clean in, bad out",
    "the first op with finite inputs and an output that is not (msprobe)",
    find,
    true};

}  // namespace nanhunt::campaign
