// SPDX-License-Identifier: Apache-2.0
// A softplus by `where`: the branch that is not taken overflows, and returns in backward as 0 * Inf.
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

constexpr double kThreshold = 8;

Tensor softplus(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const double sign = high >= -low ? 1 : -1;
  const Tensor z = engine::mul(x, sign * (bad ? 100 : 5) / amax_of(x));
  const Tensor log_branch = engine::log(engine::add(engine::exp(z), 1.0));
  return engine::where(engine::gt(z, kThreshold), z, log_branch);
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  out.plan.site = static_cast<int>(draw.below(2));
  out.plan.body = softplus;
  limit_under_scaler(settings, out.plan);
  out.target.cls = FindingClass::kOverflow;
  out.target.phase = Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {"exp"};
  return out;
}

}  // namespace

extern const Family kHiddenBranch{
    "hidden-branch",
    "the branch that `where` does not take overflows and returns in backward",
    "`overflow`, forward, that layer, `exp`",
    plant};

}  // namespace nanhunt::campaign
