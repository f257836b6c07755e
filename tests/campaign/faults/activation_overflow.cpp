// SPDX-License-Identifier: Apache-2.0
// The activations of one layer are driven past what their format holds.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

constexpr double kPast = 3;  // times the largest finite number

double gain_past_range(const Tensor& x) {
  return std::min(kPast * format_limits(x.dtype()).max_finite / amax_of(x), 3e38);
}

// x * gain.
Tensor scaled(const Tensor& x, bool bad) { return engine::mul(x, bad ? gain_past_range(x) : 1.0); }

// exp(x * gain): exp(100) is beyond fp16, bf16 and fp32.
Tensor exponential(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const double gain = !bad ? 0.1 / amax_of(x) : std::fabs(high) >= std::fabs(low) ? 100 / amax_of(x)
      : -100 / amax_of(x);
  return engine::exp(engine::mul(x, gain));
}

// (x * gain)^2.
Tensor squared(const Tensor& x, bool bad) {
  const double root = std::sqrt(format_limits(x.dtype()).max_finite);
  const Tensor z = engine::mul(x, (bad ? 2 * root : 1.0) / amax_of(x));
  return engine::mul(z, z);
}

// The sum over a dimension of numbers that each are still finite.
Tensor summed(const Tensor& x, bool bad) {
  const double size = bad ? 0.9 * format_limits(x.dtype()).max_finite : 1.0;
  const Tensor all = engine::mul(engine::add(engine::mul(x, 0.01 / amax_of(x)), 0.9), size);
  return engine::add(x, engine::sum(all, -1, /*keepdim=*/true));
}

Planted plant(Draw& draw, Settings& settings) {
  Planted out;
  out.plan.first_step = draw_step(draw, settings);
  out.plan.site = draw.chance(0.15) ? kInLoss : static_cast<int>(draw.below(2));
  const std::uint64_t form = draw.below(4);
  out.plan.body = form == 0 ? scaled : form == 1 ? exponential : form == 2 ? squared : summed;
  out.variant = form == 0 ? "x * gain" : form == 1 ? "exp" : form == 2 ? "square" : "sum";
  // Autocast sums in fp32, where these numbers do not overflow.
  if (form == 3 && settings.autocast()) {
    out.plan.body = scaled;
    out.variant = "x * gain";
  }
  limit_under_scaler(settings, out.plan);
  out.target.cls = FindingClass::kOverflow;
  out.target.phase = out.plan.site == kInLoss ? Phase::kLoss : Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {out.variant == "exp" ? "exp" : out.variant == "sum" ? "sum" : "mul"};
  return out;
}

}  // namespace

extern const Family kActivationOverflow{
    "activation-overflow",
    "a hand-written layer (or the loss) multiplies, squares, sums or exponentiates past the format",
    "`overflow`, forward or loss, that layer, `mul`, `sum` or `exp`",
    plant};

}  // namespace nanhunt::campaign
