// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/baselines/baselines.h"

namespace nanhunt::campaign {
namespace {

std::optional<Place> find(const std::vector<SeenOp>& ops) {
  for (const SeenOp& op : ops) {
    if (op.phase == Phase::kBackward && op.nan_out) return place_of(op);
  }
  return std::nullopt;
}

}  // namespace

extern const Baseline kAnomalyMode{
    "anomaly mode",
    "the first backward op that stores a NaN; infinities pass (PyTorch)",
    find,
    true};

}  // namespace nanhunt::campaign
