// SPDX-License-Identifier: Apache-2.0
// Runs in which nothing is wrong, and much looks as if.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

Plan plain(Draw&, Settings&) { return {}; }

// Dropout and accumulation together.
Plan noisy(Draw& draw, Settings& settings) {
  settings.dropout = draw.uniform(0.1, 0.5);
  settings.micro_batches = draw.between(2, 3);
  return {};
}

// The first steps are skipped until the scale fits.
Plan calibrating(Draw& draw, Settings& settings) {
  set_regime(settings, Regime::kAutocast);
  settings.init_scale = std::ldexp(1.0, static_cast<int>(draw.between(18, 26)));
  settings.steps = 24;
  return {};
}

// Half the keys hidden by -Inf before a softmax.
Plan masked(Draw& draw, Settings&) {
  Plan plan;
  plan.site = static_cast<int>(draw.below(2));
  plan.body = [](const Tensor& x, bool) {
    Tensor mask = Tensor::zeros({x.size(-1)}, DType::kBool);
    for (std::int64_t c = x.size(-1) / 2; c < x.size(-1); ++c) mask.data<std::uint8_t>()[c] = 1;
    const Tensor scores = engine::masked_fill(engine::mul(x, 0.5), mask, -HUGE_VAL);
    return engine::mul(x, engine::softmax(scores, -1));
  };
  return plan;
}

// Infinities that are written and taken away again: a running maximum that starts at -Inf, a bound that is not reached.
Plan absorbed(Draw& draw, Settings&) {
  Plan plan;
  plan.site = static_cast<int>(draw.below(2));
  const bool select = draw.chance(0.5);
  plan.body = [select](const Tensor& x, bool) {
    const Tensor negative = engine::gt(engine::neg(x), 0);
    if (select) {  // hidden, then other numbers are taken there
      const Tensor hidden = engine::masked_fill(x, negative, -HUGE_VAL);
      return engine::where(negative, engine::mul(x, 0.1), hidden);
    }
    const Tensor hidden = engine::masked_fill(x, negative, -HUGE_VAL);
    return engine::add(x, engine::mul(engine::clamp(hidden, -4, 4), 0.1));
  };
  return plan;
}

// Numbers up to half of what the format holds, beside the path of the gradients: those would be lost on the way back.
Plan large(Draw& draw, Settings&) {
  Plan plan;
  plan.site = static_cast<int>(draw.below(2));
  const double share = draw.uniform(0.1, 0.5);
  plan.body = [share](const Tensor& x, bool) {
    const double largest = std::min(format_limits(x.dtype()).max_finite, 1e30);
    const double gain = share * largest / amax_of(x);
    const Tensor big = engine::mul(x.detach(), gain);
    return engine::add(x, engine::mul(big, 0.1 / gain));
  };
  return plan;
}

// 16-bit parameters and state whose numbers stay in range.
Plan narrow_state(Draw& draw, Settings& settings) {
  settings.optimizer = {.algorithm = "sgd", .lr = 0.02, .momentum = 0.9};
  if (draw.chance(0.5)) settings.optimizer.impl = engine::OptimizerImpl::kFused;
  set_regime(settings, Regime::kF16);
  return {};
}

}  // namespace

std::span<const HealthyKind> healthy_kinds() {
  static const HealthyKind kKinds[] = {
      {"plain", "as drawn", plain},
      {"noise", "dropout, and gradients of several micro-batches", noisy},
      {"calibration", "a first scale of 2^18 to 2^26: skipped steps until gradients fit", calibrating},
      {"mask", "-Inf on purpose before a softmax", masked},
      {"absorbed", "-Inf on purpose, not selected or clamped away", absorbed},
      {"large", "activations up to half of the largest finite number", large},
      {"narrow-state", "fp16 parameters and momentum within range", narrow_state},
  };
  return kKinds;
}

}  // namespace nanhunt::campaign
