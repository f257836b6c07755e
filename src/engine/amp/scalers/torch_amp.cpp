// SPDX-License-Identifier: Apache-2.0
// torch.amp.GradScaler. The scale is a tensor, and its update is one kernel.
#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/scaler_ops.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (!options_.enabled) return;
  if (options_.growth_factor <= 1) refuse("The growth factor must be > 1.0.");
  if (options_.backoff_factor >= 1) refuse("The backoff factor must be < 1.0.");
}

ScalerEvent GradScaler::described() const {
  ScalerEvent event;
  event.scale = get_scale();
  event.growth_tracker = growth_tracker_;
  event.dynamic = options_.dynamic;
  event.growth_factor = options_.growth_factor;
  event.backoff_factor = options_.backoff_factor;
  event.growth_interval = options_.growth_interval;
  event.text = options_.dynamic ? options_.family : "static";
  return event;
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

std::string GradScaler::next(bool found_inf) {
  if (options_.dynamic) {
    amp::update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                       options_.growth_interval);
  }
  return {};  // torch skips without a word
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

LossScaler::Saved GradScaler::saved() const {
  if (!options_.enabled) return {};
  return {{"scale", get_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"growth_tracker", static_cast<double>(growth_tracker_)}};
}

void GradScaler::load(const Saved& saved) {
  if (saved.empty()) return load_state({});
  State state;
  load_number(saved, "scale", state.scale);
  load_number(saved, "growth_factor", state.growth_factor);
  load_number(saved, "backoff_factor", state.backoff_factor);
  load_number(saved, "growth_interval", state.growth_interval);
  load_number(saved, "growth_tracker", state.growth_tracker);
  load_state(state);
}

std::unique_ptr<LossScaler> make_scaler(const GradScalerOptions& options) {
  return std::make_unique<GradScaler>(options);
}

}  // namespace nanhunt::engine
