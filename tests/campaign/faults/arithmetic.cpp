// SPDX-License-Identifier: Apache-2.0
// A hand-written layer, or the loss, computes what is not finite.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "tests/campaign/faults/faults.h"

namespace nanhunt::campaign {
namespace {

using namespace nanhunt::engine;  // NOLINT: most of what is here is the engine's

double largest(const Tensor& x) { return format_limits(x.dtype()).max_finite; }

Tensor scaled(const Tensor& x, bool bad) { return mul(x, bad ? std::min(3 * largest(x) / amax_of(x), 3e38) : 1.0); }

// exp(100) is beyond fp16, bf16 and fp32.
Tensor exponential(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const double sign = std::fabs(high) >= std::fabs(low) ? 1 : -1;
  return exp(mul(x, (bad ? sign * 100 : 0.1) / amax_of(x)));
}

Tensor squared(const Tensor& x, bool bad) {
  const Tensor z = mul(x, (bad ? 2 * std::sqrt(largest(x)) : 1.0) / amax_of(x));
  return mul(z, z);
}

// The sum over a dimension of numbers that each are still finite.
Tensor summed(const Tensor& x, bool bad) {
  const Tensor all = mul(add(mul(x, 0.01 / amax_of(x)), 0.9), bad ? 0.9 * largest(x) : 1.0);
  return add(x, sum(all, -1, /*keepdim=*/true));
}

// Positive while clean; with the fault some are negative.
Tensor shifted(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const double span = std::max(high - low, 1e-3);
  return sub(x, bad ? low + 0.37 * span : low - 0.5 * span - 0.1);
}

// x with every second row multiplied by `low`: padding where that is 0.
Tensor padded(const Tensor& x, double low) {
  Tensor keep = Tensor::full({x.size(0), 1}, 1, x.dtype());
  for (std::int64_t row = 0; row < x.size(0); row += 2) set_element(keep, row, low);
  return mul(x, keep);
}

Tensor padded_positive(const Tensor& x, bool bad) { return padded(shifted(x, /*bad=*/false), bad ? 0 : 0.25); }

// The slope of sqrt at 0 is infinite.
Tensor root_of_zero(const Tensor& x, bool bad) {
  const Tensor z = padded(x, bad ? 0 : 0.25);
  return add(x, sqrt(sum(mul(z, z), -1, /*keepdim=*/true)));
}

// A norm over rows of which some are 0: with `eps` instead of 1e-2 where it is bad.
auto norm_with(double eps, bool root) {
  return [eps, root](const Tensor& x, bool bad) {
    const Tensor z = padded(x, 0), square = mean(mul(z, z), -1, /*keepdim=*/true);
    const Tensor guarded = bad && eps == 0 ? square : add(square, bad ? eps : 1e-2);
    return root ? div(z, sqrt(guarded)) : mul(z, rsqrt(guarded));
  };
}

// A mask hides the second half of each row's keys before a softmax; with the fault all of row 1.
Tensor pooled(const Tensor& x, bool bad) {
  Tensor hidden = Tensor::zeros(x.sizes(), DType::kBool);
  const std::int64_t width = x.size(-1);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    hidden.data<std::uint8_t>()[i] = (bad && i / width == 1) || i % width > width / 2 ? 1 : 0;
  }
  return mul(x, softmax(masked_fill(mul(x, 0.5 / amax_of(x)), hidden, -HUGE_VAL), -1));
}

// A softplus by `where`: the branch that is not taken overflows, and returns in backward as 0 * Inf.
Tensor softplus(const Tensor& x, bool bad) {
  const auto [low, high] = range_of(x);
  const Tensor z = mul(x, (high >= -low ? 1 : -1) * (bad ? 100 : 5) / amax_of(x));
  return where(gt(z, 8), z, log(add(exp(z), 1.0)));
}

// Divides by the root of an overflowed sum of squares: x / Inf is 0, no NaN is seen, the layer and all before it are
// dead.
Tensor divided_by_infinity(const Tensor& x, bool bad) {
  const Tensor z = mul(x, (bad ? std::min(0.9 * largest(x), 3e38) : 1) / amax_of(x));
  return to(div(z, sqrt(add(sum(mul(z, z), -1, /*keepdim=*/true), 1e-3))), x.dtype());
}

using Body = std::function<Tensor(const Tensor&, bool)>;

Fault fault(const char* kind, const char* op, Regime regime, Site site, Body body, FindingClass cls) {
  Fault out{.kind = kind, .form = op, .settings = make_settings(regime), .plan = {}, .expected = {}};
  out.plan.first_step = kFaultStep;
  // What forward repeats under a dynamic scaler halves its scale without end, which is a kind of its own.
  if (out.settings.scaler) out.plan.last_step = kFaultStep + 2;
  out.plan.site = site;
  out.plan.body = std::move(body);
  out.expected = {.cls = cls, .step = kFaultStep, .phase = site == Site::kLoss ? Phase::kLoss : Phase::kForward,
                  .module = site == Site::kLoss ? "<loss>" : site == Site::kExtra1 ? "extra1" : "extra2", .op = op};
  return out;
}

Fault slope_of_root() {
  Fault out = fault("zero-denominator", "sqrt_backward", Regime::kF32, Site::kExtra2, root_of_zero,
                    FindingClass::kDivideByZero);
  out.expected.phase = Phase::kBackward;
  return out;
}

Fault named(Fault fault, const char* form) {
  fault.form = form;
  return fault;
}

}  // namespace

std::vector<Fault> arithmetic_faults() {
  using enum Regime;
  using enum Site;
  constexpr auto kOverflow = FindingClass::kOverflow, kInvalid = FindingClass::kInvalid;
  constexpr auto kPole = FindingClass::kDivideByZero, kEpsLost = FindingClass::kEpsUnderflow;
  const auto over_shifted = [](auto op) { return [op](const Tensor& x, bool bad) { return op(shifted(x, bad)); }; };
  const auto over_padded = [](auto op) {
    return [op](const Tensor& x, bool bad) { return op(padded_positive(x, bad)); };
  };
  return {
      fault("activation-overflow", "mul", kAutocast, kExtra1, scaled, kOverflow),
      fault("activation-overflow", "exp", kF32, kLoss, exponential, kOverflow),
      named(fault("activation-overflow", "mul", kBf16, kExtra2, squared, kOverflow), "square"),
      fault("activation-overflow", "sum", kF16, kExtra1, summed, kOverflow),
      fault("domain-error", "log", kF16Masters, kExtra1, over_shifted([](const Tensor& x) { return log(x); }),
            kInvalid),
      fault("domain-error", "sqrt", kAutocast, kLoss, over_shifted([](const Tensor& x) { return sqrt(x); }), kInvalid),
      fault("zero-denominator", "div", kF16Masters, kExtra1,
            [](const Tensor& x, bool bad) { return div(shifted(x, false), padded_positive(x, bad)); }, kPole),
      fault("zero-denominator", "reciprocal", kF32, kExtra2,
            over_padded([](const Tensor& x) { return reciprocal(x); }), kPole),
      fault("zero-denominator", "log", kAutocast, kExtra2, over_padded([](const Tensor& x) { return neg(log(x)); }),
            kPole),
      slope_of_root(),
      named(fault("removed-eps", "div", kF16Masters, kExtra2, norm_with(1e-8, true), kEpsLost), "eps lost"),
      named(fault("removed-eps", "rsqrt", kF16, kExtra1, norm_with(0, false), kPole), "no eps"),
      fault("masked-row", "softmax", kF16Masters, kExtra1, pooled, kInvalid),
      fault("hidden-branch", "exp", kF16Masters, kExtra1, softplus, kOverflow),
      named(fault("swallowed-inf", "mul", kF16, kExtra1, divided_by_infinity, kOverflow), "x / Inf"),
  };
}

std::vector<Healthy> healthy_runs() {
  Settings noisy = make_settings(Regime::kBf16);
  noisy.dropout = 0.3;
  noisy.micro_batches = 2;
  Settings calibrating = make_settings(Regime::kAutocast);
  calibrating.scaler->init_scale = std::ldexp(1.0, 24);  // the first steps are skipped until the scale fits
  calibrating.steps = 24;
  const auto with_body = [](Body body) {
    Plan plan;
    plan.site = Site::kExtra1;
    plan.body = std::move(body);
    return plan;
  };
  const auto hide_negatives = [](const Tensor& x) { return masked_fill(x, gt(neg(x), 0), -HUGE_VAL); };
  return {
      {"plain", make_settings(Regime::kF16Masters), {}},
      {"noise", noisy, {}},
      {"calibration", calibrating, {}},
      {"narrow-state", make_settings(Regime::kF16), {}},
      {"mask", make_settings(Regime::kF16Masters), with_body([](const Tensor& x, bool) { return pooled(x, false); })},
      {"not-selected", make_settings(Regime::kAutocast), with_body([=](const Tensor& x, bool) {
         return where(gt(neg(x), 0), mul(x, 0.1), hide_negatives(x));
       })},
      {"clamped", make_settings(Regime::kF16Masters), with_body([=](const Tensor& x, bool) {
         return add(x, mul(clamp(hide_negatives(x), -4, 4), 0.1));
       })},
      // Up to half of what the format holds, beside the path of the gradients: those would be lost on the way back.
      {"large", make_settings(Regime::kF16), with_body([](const Tensor& x, bool) {
         const double gain = 0.5 * largest(x) / amax_of(x);
         return add(x, mul(mul(x.detach(), gain), 0.1 / gain));
       })},
  };
}

}  // namespace nanhunt::campaign
