// SPDX-License-Identifier: Apache-2.0
// Apex's FP16_Optimizer as first published: masters, their gradients on demand, its own clip, the scale updated by step.
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/apex_model.h"
#include "src/engine/amp/scaler_ops.h"
#include "src/engine/amp/scalers/apex_legacy_scale.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

struct ApexFp16Optimizer::State {
  ApexFp16OptimizerOptions options;
  ApexLegacyScale rule;  // of a static scale: its number alone
  bool overflow = false;
  std::optional<double> used;  // the scale of the step at hand
};

ApexFp16Optimizer::ApexFp16Optimizer(const ApexFp16OptimizerOptions& options)
    : state_(new State{options,
                       ApexLegacyScale(options.dynamic_loss_scale.value_or(
                           ApexLegacyScalerOptions{.init_scale = options.static_loss_scale})),
                       false, std::nullopt}) {}

ApexFp16Optimizer::~ApexFp16Optimizer() = default;

Tensor ApexFp16Optimizer::scale(const Tensor& output) {
  state_->used = state_->rule.scale;
  return LossScaler::scale(output);
}

void ApexFp16Optimizer::update_master_grads(Optimizer& optimizer) {
  const ScopedPhase phase(Phase::kUnscale);
  const NoGradGuard no_grad;
  const std::vector<NamedTensor> targets = optimizer.stepped();
  std::vector<amp::NamedGradient> fresh;
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Tensor grad = optimizer.parameters()[i].tensor.grad();
    if (!grad.defined()) continue;
    const ScopedModule module(targets[i].path);
    // A copy: an overflow must leave everything as it is.
    const Tensor copy = grad.dtype() == DType::kF32 ? engine::clone(grad) : to(grad, DType::kF32);
    fresh.push_back({targets[i].path, copy});
    of.push_back(i);
  }
  const bool found = amp::check_and_unscale_(fresh, static_cast<float>(1 / state_->rule.scale)).value_or(false);
  state_->overflow = looks() && agreed(found);
  tell(ScalerAction::kUnscale, number_of(optimizer), state_->overflow);
  if (state_->overflow) return;
  for (std::size_t k = 0; k < fresh.size(); ++k) {
    Tensor target = targets[of[k]].tensor;
    const ScopedModule module(targets[of[k]].path);
    target.set_grad(to(fresh[k].grad, target.dtype()));
  }
}

double ApexFp16Optimizer::clip_master_grads(Optimizer& optimizer, double max_norm) {
  return state_->overflow ? -1 : clip_grad_norm_(optimizer.with_gradients(), max_norm);
}

bool ApexFp16Optimizer::overflow() const { return state_->overflow; }

bool ApexFp16Optimizer::step(Optimizer& optimizer) {
  const bool overflow = state_->overflow;
  message_ = looks() ? state_->rule.next(overflow) : std::string();
  tell(ScalerAction::kUpdate, /*optimizer=*/0, overflow, message_);
  if (!overflow) optimizer.step();
  tell(overflow ? ScalerAction::kSkip : ScalerAction::kStep, number_of(optimizer), overflow);
  return !overflow;
}

Tensor ApexFp16Optimizer::step(Optimizer& optimizer, const std::function<Tensor()>& closure) {
  if (looks()) {
    throw std::invalid_argument("Using step with a closure is currently not compatible with dynamic loss scaling.");
  }
  Tensor loss = closure();
  step(optimizer);
  return loss;
}

void ApexFp16Optimizer::update() { state_->used.reset(); }

double ApexFp16Optimizer::get_scale() const { return state_->used.value_or(state_->rule.scale); }

bool ApexFp16Optimizer::looks() const { return state_->options.dynamic_loss_scale.has_value(); }

std::string ApexFp16Optimizer::next(bool found_inf) { return state_->rule.next(found_inf); }

LossScaler::Saved ApexFp16Optimizer::saved() const {
  Saved out;
  state_->rule.for_each_number(
      [&](const char* name, auto& number) { out.emplace_back(name, static_cast<double>(number)); });
  out.emplace_back("overflow", state_->overflow ? 1 : 0);
  return out;
}

void ApexFp16Optimizer::load(const Saved& saved) {
  state_->rule.for_each_number([&](const char* name, auto& number) { load_number(saved, name, number); });
  load_number(saved, "overflow", state_->overflow);
  state_->used.reset();
}

ScalerEvent ApexFp16Optimizer::described() const {
  ScalerEvent event = state_->rule.described();
  if (looks()) return event;
  event.dynamic = false;
  event.growth_tracker = 0;
  event.growth_factor = event.backoff_factor = 1;
  event.text = "apex FP16_Optimizer, static";
  return event;
}

std::unique_ptr<LossScaler> make_scaler(const ApexFp16OptimizerOptions& options) {
  return std::make_unique<ApexFp16Optimizer>(options);
}

TrainingSetup apex_fp16_optimizer(TrainingSetup setup, const ApexFp16OptimizerOptions& options) {
  if (setup.model == nullptr) fail("FP16_Optimizer", "a model", "none");
  setup.model->to(DType::kF16, is_batch_norm);
  setup.model->set_call_casts(DType::kF16, {});
  setup.optimizer.fp32_masters = true;
  setup.options.scaler = options;
  return setup;
}

}  // namespace nanhunt::engine
