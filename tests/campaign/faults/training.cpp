// SPDX-License-Identifier: Apache-2.0
// What is wrong is how the run is trained: the optimizer, the loss scaler, the learning rate, a number format.
#include <cmath>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "tests/campaign/faults/faults.h"

namespace nanhunt::campaign {
namespace {

using engine::Tensor;

Fault fault(const char* kind, const char* form, Regime regime, Expected expected) {
  return {.kind = kind, .form = form, .settings = make_settings(regime), .plan = {}, .expected = std::move(expected)};
}

// The weights of fc2 are grown after each update, as by a weight decay of the wrong sign, until the layer's own product
// overflows, or before it the cast of the weights: autocast stores 3e5 as Inf.
Fault weight_overflow(const char* op, Regime regime, double end) {
  Fault out = fault("weight-overflow", op, regime, {FindingClass::kOverflow, kFaultStep, Phase::kForward, "fc2", op});
  out.plan.first_step = kFaultStep - 2;
  out.plan.after_update = [end](Rig& rig, std::uint32_t step) {
    if (step + 3 < kFaultStep || step >= kFaultStep) return;
    const engine::NoGradGuard no_grad;
    const engine::ScopedModule module("fc2.weight");
    const engine::ScopedPhase phase(Phase::kOptimizer);
    std::vector<Tensor> copies = {rig.tensor("fc2.weight")};
    if (rig.settings().optimizer.fp32_masters) copies.insert(copies.begin(), rig.tensor("fc2.weight.master"));
    const double factor = step + 1 == kFaultStep ? end / amax_of(copies.front()) : 1.5;
    for (Tensor& copy : copies) engine::mul_(copy, factor);
  };
  return out;
}

// Weights without gradient have m = v = 0: with eps rounded to 0 in fp16 state, or left out, their update is 0/0.
Fault adam_eps(bool left_out) {
  Fault out = fault("adam-eps", left_out ? "no eps" : "eps lost", Regime::kF16Masters,
                    {left_out ? FindingClass::kDivideByZero : FindingClass::kEpsUnderflow, 0, Phase::kOptimizer,
                     "fc1.weight", left_out ? "_fused_adam_" : "addcdiv_"});
  if (left_out) out.settings.optimizer.impl = engine::OptimizerImpl::kFused;
  out.plan.spoil_settings = [left_out](Settings& s) {
    s.optimizer.fp32_masters = left_out;
    s.optimizer.eps = left_out ? 0 : 1e-8;
  };
  return out;
}

Fault static_scale() {
  Fault out = fault("static-scale", "2^40", Regime::kAutocast,
                    {FindingClass::kOverflow, 0, Phase::kBackward, "<loss>", "_to_copy_backward"});
  out.settings.scaler = engine::GradScalerOptions{.init_scale = 64, .dynamic = false};
  out.plan.spoil_settings = [](Settings& s) { s.scaler->init_scale = std::ldexp(1.0, 40); };
  return out;
}

Fault clip_before_unscale() {
  Fault out = fault("scaler-misuse", "clip before unscale", Regime::kAutocast,
                    {FindingClass::kApiMisuse, 0, Phase::kClip, "", "clip_grad_norm_"});
  out.settings.clip_norm = 1;
  out.settings.optimizer = {.algorithm = "sgd", .lr = 0.05};
  out.plan.spoil_settings = [](Settings& s) { s.clip_before_unscale = true; };
  return out;
}

// Step 0 is skipped at this scale; its bad gradients stay, and step 1 adds to them.
Fault kept_gradients() {
  Fault out = fault("scaler-misuse", "kept gradients", Regime::kAutocast,
                    {FindingClass::kApiMisuse, 1, Phase::kBackward, "fc3", "add"});
  out.settings.scaler->init_scale = std::ldexp(1.0, 34);
  out.settings.steps = 26;
  out.plan.spoil_settings = [](Settings& s) { s.keep_skipped_gradients = true; };
  return out;
}

// Activations overflow in every step, the dynamic scale halves without end.
Fault scaler_collapse() {
  Fault out = fault("scaler-collapse", "mul", Regime::kAutocast,
                    {FindingClass::kScalerCollapse, 2, Phase::kForward, "extra1", "mul"});
  out.settings.scaler->init_scale = 64;
  out.settings.steps = 30;
  out.plan.first_step = 2;
  out.plan.site = Site::kExtra1;
  out.plan.body = [](const Tensor& x, bool bad) {
    return engine::mul(x, bad ? 3 * format_limits(x.dtype()).max_finite / amax_of(x) : 1.0);
  };
  return out;
}

// Layers without a norm drive each other up, fc2 the most: some hundred times as much as fc3, by the norms of their
// weights. Which step is the first that is not finite, the run says itself.
Fault high_lr() {
  Fault out = fault("high-lr", "fp32", Regime::kF32, {FindingClass::kExploding, std::nullopt, std::nullopt, "fc2", ""});
  out.settings.regression = true;
  out.settings.optimizer = {.algorithm = "sgd", .lr = 0.05};
  out.settings.steps = 24;
  out.plan.spoil_settings = [](Settings& s) { s.optimizer.lr = 2000; };
  return out;
}

// fp16 autocast without loss scaling, and a loss with a small weight: gradients of many layers and ops are lost.
Fault gradient_underflow() {
  Fault out = fault("grad-underflow", "no scaler", Regime::kAutocast,
                    {FindingClass::kUnderflow, 0, Phase::kBackward, std::nullopt, std::nullopt});
  out.settings.loss_weight = 3e-6;
  out.settings.scaler = engine::GradScalerOptions{.init_scale = 65536, .dynamic = false};
  out.settings.optimizer.eps = 1e-12;
  out.plan.spoil_settings = [](Settings& s) { s.scaler.reset(); };
  return out;
}

// Updates below half of what separates two fp16 numbers are lost, of many parameters; fp32 masters keep them.
Fault lost_updates() {
  Fault out = fault("lost-updates", "no masters", Regime::kF16Masters,
                    {FindingClass::kUpdateLoss, std::nullopt, Phase::kOptimizer, std::nullopt, "add_"});
  out.settings.optimizer = {.algorithm = "sgd", .lr = 3e-4, .fp32_masters = true};
  out.plan.spoil_settings = [](Settings& s) { s.optimizer.fp32_masters = false; };
  return out;
}

}  // namespace

std::vector<Fault> training_faults() {
  return {
      weight_overflow("addmm", Regime::kF16Masters, 0.9 * format_limits(DType::kF16).max_finite),
      weight_overflow("_to_copy", Regime::kAutocast, 3e5),
      adam_eps(/*left_out=*/false),
      adam_eps(/*left_out=*/true),
      static_scale(),
      clip_before_unscale(),
      kept_gradients(),
      scaler_collapse(),
      high_lr(),
      gradient_underflow(),
      lost_updates(),
  };
}

}  // namespace nanhunt::campaign
