// SPDX-License-Identifier: Apache-2.0
// Poles: x / 0, 1 / 0, log 0, and the infinite slope of sqrt at 0. The zeros are exact: some entries are padding that
// is multiplied by 0, where the clean run multiplies by 1/4.
#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

// 1, and `low` for every second row of the first dimension.
Tensor padding(const Tensor& x, double low) {
  engine::Shape sizes(x.sizes().size(), 1);
  sizes[0] = x.size(0);
  Tensor keep = Tensor::full(sizes, 1, x.dtype());
  for (std::int64_t row = 0; row < x.size(0); row += 2) set_element(keep, row, low);
  return keep;
}

Tensor positive(const Tensor& x) {
  const auto [low, high] = range_of(x);
  return engine::sub(x, low - 0.5 * (high - low) - 0.1);
}

enum Form : std::uint64_t { kDivision, kReciprocal, kLog, kRootSlope };

// Each grows towards +Inf, which a relu behind it lets through.
Tensor compute(Form form, const Tensor& x, bool bad) {
  const Tensor p = positive(x), keep = padding(x, bad ? 0 : 0.25);
  switch (form) {
    case kDivision: return engine::div(p, engine::mul(p, keep));
    case kReciprocal: return engine::mul(p, engine::reciprocal(engine::mul(p, keep)));
    case kLog: return engine::neg(engine::log(engine::mul(p, keep)));
    default: {
      const Tensor z = engine::mul(x, keep);
      const Tensor square = engine::sum(engine::mul(z, z), -1, /*keepdim=*/true);
      return engine::add(x, engine::sqrt(square));
    }
  }
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  out.plan.site = static_cast<int>(draw.below(2));
  const Form form = static_cast<Form>(draw.below(4));
  out.plan.body = [form](const Tensor& x, bool bad) { return compute(form, x, bad); };
  constexpr std::string_view kOps[] = {"div", "reciprocal", "log", "sqrt_backward"};
  out.variant = kOps[form];
  limit_under_scaler(settings, out.plan);
  out.target.cls = FindingClass::kDivideByZero;
  out.target.phase = form == kRootSlope ? Phase::kBackward : Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {out.variant};
  return out;
}

}  // namespace

extern const Family kZeroDenominator{
    "zero-denominator",
    "division by an exact 0, 1/0, log 0, or the slope of sqrt at 0",
    "`divide_by_zero`, forward (backward for sqrt), that layer, `div`, `reciprocal`, `log` or `sqrt_backward`",
    plant};

}  // namespace nanhunt::campaign
