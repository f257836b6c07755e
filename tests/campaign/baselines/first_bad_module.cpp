// SPDX-License-Identifier: Apache-2.0
#include "tests/campaign/baselines/baselines.h"

namespace nanhunt::campaign {
namespace {

std::optional<Place> find(const std::vector<SeenOp>& ops) {
  for (const SeenOp& op : ops) {
    if (op.phase == Phase::kForward && (op.bad_in || op.bad_out)) return Place{op.step, op.phase, op.module,
        std::nullopt};
  }
  return std::nullopt;
}

}  // namespace

extern const Baseline kFirstBadModule{
    "first bad module",
    "the first module in forward whose input, weight or output is not finite (Hugging Face)",
    find,
    false};

}  // namespace nanhunt::campaign
