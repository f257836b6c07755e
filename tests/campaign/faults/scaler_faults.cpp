// SPDX-License-Identifier: Apache-2.0
// The loss scaler: a static scale beyond the gradients' range, wrong calls around it, and a scale that cannot recover.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

void use_scaler(Settings& settings) {
  set_regime(settings, Regime::kAutocast);
  settings.clip_norm.reset();
}

Planted plant_static(Draw& draw, Settings& settings) {
  use_scaler(settings);
  settings.dynamic_scale = false;
  settings.init_scale = 64;
  Planted out;
  out.plan.spoil_settings = [scale = std::ldexp(1.0, static_cast<int>(draw.between(32, 48)))](Settings& s) {
    s.init_scale = scale;
  };
  out.target.cls = FindingClass::kOverflow;
  out.target.phase = Phase::kBackward;
  return out;
}

Planted plant_misuse(Draw& draw, Settings& settings) {
  use_scaler(settings);
  Planted out;
  out.target.cls = FindingClass::kApiMisuse;
  if (draw.chance(0.5)) {
    settings.clip_norm = draw.uniform(0.5, 2);
    out.variant = "clip before unscale";
    out.plan.spoil_settings = [](Settings& s) { s.clip_before_unscale = true; };
    out.target.witnessing = Witnessing::kPlanned;
    out.target.phase = Phase::kClip;
    out.target.module = [](const Rig&) { return std::optional<std::string>(); };
    out.target.ops = {"clip_grad_norm_"};
    return out;
  }
  // Step 0 is skipped at this scale; its bad gradients stay, and step 1 adds to them.
  settings.model = ModelKind::kMlp;  // no op named add in its backward but the sums into kept gradients
  settings.micro_batches = 1;
  settings.init_scale = std::ldexp(1.0, 34);
  settings.steps = 26;
  out.variant = "kept gradients";
  out.plan.spoil_settings = [](Settings& s) { s.keep_skipped_gradients = true; };
  out.target.phase = Phase::kBackward;
  out.target.ops = {"add"};
  out.target.from_step = 1;
  return out;
}

Planted plant_collapse(Draw& draw, Settings& settings) {
  use_scaler(settings);
  settings.init_scale = 64;
  settings.steps = 30;
  Planted out;
  out.plan.first_step = draw.between(1, 4);
  out.plan.site = static_cast<int>(draw.below(2));
  out.plan.body = [](const Tensor& x, bool bad) {
    return engine::mul(x, bad ? std::min(3 * format_limits(x.dtype()).max_finite / amax_of(x), 3e38) : 1.0);
  };
  out.target.cls = FindingClass::kScalerCollapse;
  out.target.phase = Phase::kForward;
  out.target.module = at_site(out.plan.site);
  out.target.ops = {"mul"};
  return out;
}

}  // namespace

extern const Family kStaticScale{
    "static-scale",
    "a static loss scale far beyond what fp16 gradients hold",
    "`overflow`, backward, the first op that stores an Inf",
    plant_static};
extern const Family kScalerMisuse{
    "scaler-misuse",
    "gradients clipped before unscale, or those of a skipped step kept",
    "`api_misuse`: clip, no module, `clip_grad_norm_`; or backward, the first `add` to kept gradients",
    plant_misuse};
extern const Family kCollapse{
    "scaler-collapse",
    "activations overflow in every step, the dynamic scale halves without end",
    "`scaler_collapse`, forward, the layer that overflows, `mul`",
    plant_collapse};

}  // namespace nanhunt::campaign
