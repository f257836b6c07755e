// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/loss_scaler.h"

#include <algorithm>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/scaler_ops.h"

namespace nanhunt::engine {

void LossScaler::tell(ScalerAction action, std::uint32_t optimizer, bool found_inf, std::string_view text) {
  if (!has_observers()) {
    reported_ = false;  // who comes later has not heard it
    return;
  }
  ScalerEvent event = described();
  if (!reported_) {
    reported_ = true;
    event.action = ScalerAction::kCreate;
    notify_scaler(event);
  }
  event.action = action;
  event.optimizer = optimizer;
  event.found_inf = found_inf;
  event.text = text;
  notify_scaler(event);
}

bool LossScaler::agreed(bool found_inf) const {
  if (ranks_ == nullptr) return found_inf;
  Tensor flag = Tensor::full({1}, found_inf ? 1 : 0, DType::kF32);
  return all_reduce_(flag, *ranks_, Reduction::kMax).item() != 0;
}

void LossScaler::refuse(std::string_view text, std::uint32_t optimizer) {
  tell(ScalerAction::kRefused, optimizer, /*found_inf=*/false, text);
  throw std::invalid_argument(std::string(text));
}

void LossScaler::expect_scale(std::string_view call, std::uint32_t optimizer) {
  if (has_scale()) return;
  refuse("Attempted " + std::string(call) +
             " but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs) earlier in "
             "the iteration.",
         optimizer);
}

std::uint32_t LossScaler::number_of(const Optimizer& optimizer) {
  const auto at =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) { return known.optimizer == &optimizer; });
  const auto number = static_cast<std::uint32_t>(at - known_.begin());
  if (at == known_.end()) known_.push_back({&optimizer, {}});
  return number;
}

void LossScaler::reset_stages() {
  for (Known& known : known_) known.state = {};
}

Tensor LossScaler::scale(const Tensor& output) {
  const ScopedPhase phase(Phase::kScale);
  Tensor scaled = mul(to(output, DType::kF32), get_scale());
  tell(ScalerAction::kScale);
  return scaled;
}

void LossScaler::backward(const Tensor& loss, Optimizer& /*optimizer*/, const LossOfStep& /*which*/) {
  const Tensor scaled = scale(loss);
  const ScopedPhase phase(Phase::kBackward);
  scaled.backward();
}

double LossScaler::clip(Optimizer& optimizer, double max_norm) {
  return clip_grad_norm_(optimizer.with_gradients(), max_norm);
}

std::optional<bool> LossScaler::check_and_unscale(Optimizer& optimizer) {
  return amp::check_and_unscale_(amp::gradients_to_unscale(optimizer), static_cast<float>(1 / get_scale()));
}

void LossScaler::unscale_(Optimizer& optimizer) {
  if (!is_enabled()) return;
  const std::uint32_t number = number_of(optimizer);
  expect_scale("unscale_", number);
  OptimizerState& state = known_[number].state;
  if (state.stage == Stage::kUnscaled) {
    refuse("unscale_() has already been called on this optimizer since the last update().", number);
  }
  if (state.stage == Stage::kStepped) refuse("unscale_() is being called after step().", number);
  // Nothing is touched when a gradient is refused.
  if (!takes_fp16()) {
    const std::vector<NamedTensor> targets = optimizer.stepped();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const bool has_gradient = optimizer.parameters()[i].tensor.grad().defined();
      if (has_gradient && targets[i].tensor.dtype() == DType::kF16) {
        refuse("Attempting to unscale FP16 gradients.", number);
      }
    }
  }
  const ScopedPhase phase(Phase::kUnscale);
  const NoGradGuard no_grad;
  state.found_inf = check_and_unscale(optimizer);
  if (state.found_inf) state.found_inf = looks() && agreed(*state.found_inf);
  state.stage = Stage::kUnscaled;
  tell(ScalerAction::kUnscale, number, state.found_inf.value_or(false));
}

bool LossScaler::step(Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  const std::uint32_t number = number_of(optimizer);
  expect_scale("step", number);
  if (known_[number].state.stage == Stage::kStepped) {
    refuse("step() has already been called since the last update().", number);
  }
  if (known_[number].state.stage == Stage::kReady) unscale_(optimizer);
  OptimizerState& state = known_[number].state;
  if (!state.found_inf) refuse("No inf checks were recorded for this optimizer.", number);
  const Use use = use_of(*state.found_inf);
  if (use != Use::kSkip) optimizer.step();
  state.stage = Stage::kStepped;
  tell(use == Use::kStep ? ScalerAction::kStep : ScalerAction::kSkip, number, *state.found_inf);
  return use != Use::kSkip;
}

void LossScaler::update() {
  if (!is_enabled()) return;
  expect_scale("update");
  const auto checked = [](const Known& known) { return known.state.found_inf.has_value(); };
  if (std::none_of(known_.begin(), known_.end(), checked)) refuse("No inf checks were recorded prior to update.");
  const bool found_inf = std::any_of(known_.begin(), known_.end(),
                                     [](const Known& known) { return known.state.found_inf.value_or(false); });
  try {
    const ScopedPhase phase(Phase::kUpdate);
    message_ = next(found_inf);
  } catch (const std::runtime_error& given_up) {
    message_ = given_up.what();
    reset_stages();
    tell(ScalerAction::kGaveUp, /*optimizer=*/0, found_inf, message_);
    throw;
  }
  reset_stages();
  tell(ScalerAction::kUpdate, /*optimizer=*/0, found_inf, message_);
}

}  // namespace nanhunt::engine
