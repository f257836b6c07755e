// SPDX-License-Identifier: Apache-2.0
// log or sqrt of negatives: the offset that kept the argument positive goes wrong.
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

// Positive while clean; with the fault some are negative.
Tensor shifted(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const double span = std::max(high - low, 1e-3);
  return engine::sub(x, bad ? low + 0.37 * span : low - 0.5 * span - 0.1);
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  out.plan.site = draw.chance(0.3) ? kInLoss : static_cast<int>(draw.below(2));
  const bool log = draw.chance(0.5);
  out.plan.body = [log](const Tensor& x, bool bad) {
    const Tensor z = shifted(x, bad);
    return log ? engine::log(z) : engine::sqrt(z);
  };
  out.variant = log ? "log" : "sqrt";
  limit_under_scaler(settings, out.plan);
  out.target.cls = FindingClass::kInvalid;
  out.target.phase = out.plan.site == kInLoss ? Phase::kLoss : Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {out.variant};
  return out;
}

}  // namespace

extern const Family kDomain{
    "domain-error",
    "log or sqrt meets negatives",
    "`invalid`, forward or loss, that layer, `log` or `sqrt`",
    plant};

}  // namespace nanhunt::campaign
