// SPDX-License-Identifier: Apache-2.0
// A hand-written norm divides by the root of an overflowed sum of squares: x / Inf is 0, no NaN is seen, the layer and
// all before it are dead.
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

Tensor normed(const Tensor& x, bool bad) {
  const double largest = format_limits(x.dtype()).max_finite;
  const Tensor z = engine::mul(x, bad ? std::min(0.9 * largest / amax_of(x), 3e38) : 1 / amax_of(x));
  const Tensor squares = engine::sum(engine::mul(z, z), -1, /*keepdim=*/true);
  return engine::to(engine::div(z, engine::sqrt(engine::add(squares, 1e-3))), x.dtype());
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw.between(1, settings.steps / 2);
  out.plan.site = static_cast<int>(draw.below(2));
  out.plan.body = normed;
  out.target.cls = FindingClass::kOverflow;
  out.target.phase = Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {"mul"};
  return out;
}

}  // namespace

extern const Family kSwallowedInf{
    "swallowed-inf",
    "a norm divides by an overflowed sum of squares from some step on: x / Inf = 0",
    "`overflow`, forward, that layer, `mul`",
    plant};

}  // namespace nanhunt::campaign
