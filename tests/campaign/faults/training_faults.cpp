// SPDX-License-Identifier: Apache-2.0
// No op is at fault: a learning rate too high, and gradients that fp16 loses.
#include <cmath>

#include "tests/campaign/fault.h"
#include "tests/campaign/faults/families.h"

namespace nanhunt::campaign {
namespace {

// Layers without a norm drive each other up; a norm would hold them.
Planted plant_high_lr(Draw& draw, Settings& settings) {
  settings.model = ModelKind::kMlp;
  settings.regression = true;
  settings.dropout = 0;
  settings.clip_norm.reset();
  set_regime(settings, draw.one_of({Regime::kF32, Regime::kF32, Regime::kBf16}));
  settings.optimizer = {.algorithm = "sgd", .lr = 0.05, .fp32_masters = settings.optimizer.fp32_masters};
  settings.steps = 24;
  Planted out;
  out.plan.spoil_settings = [lr = draw.uniform(30, 120)](Settings& s) { s.optimizer.lr = lr; };
  out.target.cls = FindingClass::kExploding;
  out.target.witnessing = Witnessing::kDiverged;
  out.target.op_scored = true;  // none
  return out;
}

Planted plant_underflow(Draw& draw, Settings& settings) {
  set_regime(settings, Regime::kAutocast);
  settings.dynamic_scale = false;
  settings.clip_norm.reset();
  settings.loss_weight = draw.uniform(1e-6, 1e-5);
  settings.init_scale = 1 << 16;
  settings.optimizer = {.algorithm = "adam", .lr = 2e-3, .eps = 1e-12};
  Planted out;
  out.plan.spoil_settings = [](Settings& s) { s.scaler = false; };
  out.target = {.cls = FindingClass::kUnderflow,
                .witnessing = Witnessing::kPlanned,
                .phase = Phase::kBackward,
                .module = {},
                .module_scored = false,
                .op_scored = false,
                .ops = {}};
  return out;
}

// Updates below half of what separates two fp16 numbers are lost; fp32 masters keep them.
Planted plant_lost_updates(Draw& draw, Settings& settings) {
  set_regime(settings, Regime::kF16Masters);
  const double momentum = draw.chance(0.4) ? 0.9 : 0;
  settings.optimizer = {.algorithm = "sgd",
                        .lr = std::exp(draw.uniform(std::log(1e-4), std::log(3e-3))) * (momentum != 0 ? 0.1 : 1),
                        .momentum = momentum,
                        .impl = settings.optimizer.impl,
                        .fp32_masters = true};
  settings.steps = draw.between(14, 20);
  Planted out;
  out.plan.spoil_settings = [](Settings& s) { s.optimizer.fp32_masters = false; };
  out.target = {.cls = FindingClass::kUpdateLoss,
                .witnessing = Witnessing::kPlanned,
                .phase = Phase::kOptimizer,
                .module = {},
                .module_scored = false,
                .step_scored = false,
                .ops = {settings.optimizer.impl == engine::OptimizerImpl::kFused ? "_fused_sgd_" : "add_"}};
  return out;
}

}  // namespace

extern const Family kHighLr{
    "high-lr",
    "a learning rate far too high",
    "`exploding`, no op, a layer that grew fastest (within a factor of 2), the first step that is not finite; the "
    "phase is arbitrary and not scored",
    plant_high_lr};
extern const Family kGradUnderflow{
    "grad-underflow",
    "fp16 autocast without loss scaling, and a loss with a small weight",
    "`underflow`, backward, step 0; layer and op are many and not scored",
    plant_underflow};

extern const Family kLostUpdates{
    "lost-updates",
    "SGD steps fp16 weights without fp32 masters; the updates round away",
    "`update_loss`, optimizer, `add_` or the fused update; parameter and first step are many and not scored",
    plant_lost_updates};

}  // namespace nanhunt::campaign
