// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/scaler_ops.h"

namespace nanhunt::engine {

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (!options_.enabled) return;
  if (options_.growth_factor <= 1) refuse("The growth factor must be > 1.0.");
  if (options_.backoff_factor >= 1) refuse("The backoff factor must be < 1.0.");
}

void GradScaler::tell(ScalerAction action, std::uint32_t optimizer, bool found_inf, std::string_view text) {
  if (!has_observers()) {
    reported_ = false;  // who comes later has not heard it
    return;
  }
  ScalerEvent event;
  event.scale = get_scale();
  event.growth_tracker = growth_tracker_;
  event.dynamic = options_.dynamic;
  event.growth_factor = options_.growth_factor;
  event.backoff_factor = options_.backoff_factor;
  event.growth_interval = options_.growth_interval;
  if (!reported_) {
    reported_ = true;
    event.action = ScalerAction::kCreate;
    event.text = options_.dynamic ? "torch.amp" : "static";
    notify_scaler(event);
  }
  event.action = action;
  event.optimizer = optimizer;
  event.found_inf = found_inf;
  event.text = text;
  notify_scaler(event);
}

void GradScaler::refuse(std::string_view text, std::uint32_t optimizer) {
  tell(ScalerAction::kRefused, optimizer, /*found_inf=*/false, text);
  throw std::invalid_argument(std::string(text));
}

void GradScaler::expect_scale(std::string_view call, std::uint32_t optimizer) {
  if (scale_.defined()) return;
  refuse("Attempted " + std::string(call) +
             " but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs) earlier in "
             "the iteration.",
         optimizer);
}

std::uint32_t GradScaler::number_of(const Optimizer& optimizer) {
  const auto at =
      std::find_if(known_.begin(), known_.end(), [&](const Known& known) { return known.optimizer == &optimizer; });
  const auto number = static_cast<std::uint32_t>(at - known_.begin());
  if (at == known_.end()) known_.push_back({&optimizer, {}});
  return number;
}

Tensor GradScaler::scale(const Tensor& output) {
  if (!options_.enabled) return output;
  if (!scale_.defined()) scale_ = Tensor::full({}, options_.init_scale, DType::kF32);
  const ScopedPhase phase(Phase::kScale);
  Tensor scaled = mul(output, scale_);
  tell(ScalerAction::kScale);
  return scaled;
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> scaled;
  for (const Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  const std::uint32_t number = number_of(optimizer);
  expect_scale("unscale_", number);
  OptimizerState& state = known_[number].state;
  if (state.stage == Stage::kUnscaled) {
    refuse("unscale_() has already been called on this optimizer since the last update().", number);
  }
  if (state.stage == Stage::kStepped) refuse("unscale_() is being called after step().", number);
  // Nothing is touched when a gradient is refused.
  for (const auto& [path, parameter] : optimizer.parameters()) {
    if (parameter.grad().defined() && parameter.grad().dtype() == DType::kF16) {
      refuse("Attempting to unscale FP16 gradients.", number);
    }
  }
  const auto inv_scale = static_cast<float>(1 / static_cast<double>(*scale_.data<float>()));
  const ScopedPhase phase(Phase::kUnscale);
  const NoGradGuard no_grad;
  std::vector<amp::NamedGradient> on_device;
  for (const auto& [path, parameter] : optimizer.parameters()) {
    Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    if (!grad.device().is_cpu()) {
      on_device.push_back({path, grad});
      continue;
    }
    const ScopedModule module(path);
    const bool found = amp::check_and_unscale_(grad, inv_scale);
    state.found_inf = state.found_inf.value_or(false) || (found && options_.dynamic);
  }
  for (std::span<amp::NamedGradient> left = on_device; !left.empty();) {
    const Device device = left.front().grad.device();
    const auto rest = std::stable_partition(left.begin(), left.end(), [&](const amp::NamedGradient& named) {
      return named.grad.device() == device;
    });
    const Tensor found_there = Tensor::zeros({1}, DType::kI32, device);
    const auto many = static_cast<std::size_t>(rest - left.begin());
    amp::check_and_unscale_(left.first(many), inv_scale, found_there);
    // one read for all of them: the scaler's own, with or without observers
    const bool found = found_there.item() != 0;
    state.found_inf = state.found_inf.value_or(false) || (found && options_.dynamic);
    left = left.subspan(many);
  }
  state.stage = Stage::kUnscaled;
  tell(ScalerAction::kUnscale, number, state.found_inf.value_or(false));
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
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
  const bool runs = !*state.found_inf;
  if (runs) optimizer.step();
  state.stage = Stage::kStepped;
  tell(runs ? ScalerAction::kStep : ScalerAction::kSkip, number, *state.found_inf);
  return runs;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  expect_scale("update");
  const auto checked = [](const Known& known) { return known.state.found_inf.has_value(); };
  if (std::none_of(known_.begin(), known_.end(), checked)) refuse("No inf checks were recorded prior to update.");
  const bool found_inf = std::any_of(known_.begin(), known_.end(),
                                     [](const Known& known) { return known.state.found_inf.value_or(false); });
  if (options_.dynamic) {
    const ScopedPhase phase(Phase::kUpdate);
    amp::update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                       options_.growth_interval);
  }
  reset_stages();
  tell(ScalerAction::kUpdate, /*optimizer=*/0, found_inf);
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  expect_scale("update");
  set_scale(new_scale);
  reset_stages();
  tell(ScalerAction::kSet);
}

void GradScaler::set_scale(double value) {
  const ScopedPhase phase(Phase::kUpdate);
  fill_(scale_, value);
}

void GradScaler::reset_stages() {
  for (Known& known : known_) known.state = {};
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item() : options_.init_scale;
}

std::int64_t GradScaler::growth_tracker() const { return options_.enabled ? growth_tracker_ : 0; }

std::optional<GradScaler::State> GradScaler::state() const {
  if (!options_.enabled) return std::nullopt;
  return State{.scale = get_scale(),
               .growth_factor = options_.growth_factor,
               .backoff_factor = options_.backoff_factor,
               .growth_interval = options_.growth_interval,
               .growth_tracker = growth_tracker_};
}

void GradScaler::load_state(const std::optional<State>& state) {
  if (!options_.enabled) return;
  if (!state) {
    refuse("The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.");
  }
  options_.init_scale = state->scale;
  options_.growth_factor = state->growth_factor;
  options_.backoff_factor = state->backoff_factor;
  options_.growth_interval = state->growth_interval;
  growth_tracker_ = static_cast<std::int32_t>(state->growth_tracker);
  if (scale_.defined()) set_scale(state->scale);
}

void GradScaler::put_back(const GradScaler& copy, double scale) {
  *this = copy;
  if (!scale_.defined() || scale_.item() == scale) return;
  scale_.copy_from(Tensor::full({}, scale, DType::kF32));
}

}  // namespace nanhunt::engine
