// SPDX-License-Identifier: Apache-2.0
// A hand-written norm over rows of which some are zero: with the eps lost to the format, or left out.
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

// All of the last dimension is 0 where the first index is even: padding.
Tensor with_padding(const Tensor& x) {
  engine::Shape sizes(x.sizes().size(), 1);
  sizes[0] = x.size(0);
  Tensor keep = Tensor::full(sizes, 1, x.dtype());
  for (std::int64_t row = 0; row < x.size(0); row += 2) set_element(keep, row, 0);
  return engine::mul(x, keep);
}

Tensor mean_square(const Tensor& z, double eps) {
  const Tensor square = engine::mean(engine::mul(z, z), -1, /*keepdim=*/true);
  return eps == 0 ? square : engine::add(square, eps);
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  out.plan.site = static_cast<int>(draw.below(2));
  const bool left_out = draw.chance(0.4), root = draw.chance(0.5);
  const double lost = settings.compute_dtype() == DType::kF16 ? 1e-8 : 1e-46;
  out.plan.body = [left_out, root, lost](const Tensor& x, bool bad) {
    const Tensor z = with_padding(x);
    const Tensor m = mean_square(z, bad ? (left_out ? 0 : lost) : 1e-2);
    return root ? engine::div(z, engine::sqrt(m)) : engine::mul(z, engine::rsqrt(m));
  };
  out.variant = std::string(left_out ? "no eps, " : "eps lost, ").append(root ? "div" : "rsqrt");
  limit_under_scaler(settings, out.plan);
  out.target.cls = left_out ? FindingClass::kDivideByZero : FindingClass::kEpsUnderflow;
  out.target.phase = Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {root ? "div" : "rsqrt"};
  return out;
}

}  // namespace

extern const Family kRemovedEps{
    "removed-eps",
    "a hand-written norm over zero rows, its eps rounded to 0 or left out",
    "`eps_underflow` where eps rounds to 0, `divide_by_zero` where there is none; forward, that layer, `div` or "
    "`rsqrt`",
    plant};

}  // namespace nanhunt::campaign
