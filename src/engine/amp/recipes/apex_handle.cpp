// SPDX-License-Identifier: Apache-2.0
// Apex's amp.init and the optimizers that its handle wraps.
#include "nanhunt/engine/apex_handle.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/scaler_ops.h"
#include "src/engine/amp/scalers/apex_scale.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

struct ApexEarlyScaler::State {
  bool enabled = true;
  std::vector<ApexScale> scales;  // by loss
  std::vector<bool> overflowed;   // since the last step
  std::uint32_t next_loss = 0;
  std::vector<const Optimizer*> skipping;  // of a handle: whose next step is skipped

  const ApexScale& current() const { return scales[std::min<std::size_t>(next_loss, scales.size() - 1)]; }
};

ApexEarlyScaler::ApexEarlyScaler(bool enabled, std::uint32_t losses) : state_(std::make_unique<State>()) {
  if (losses == 0) fail("wrap_optimizer", "one loss or more", "0");
  state_->enabled = enabled;
  state_->scales.assign(losses, ApexScale(ApexScalerOptions{}));
  state_->overflowed.assign(losses, false);
}
ApexEarlyScaler::ApexEarlyScaler(const ApexEarlyScaler& other)
    : LossScaler(other), state_(std::make_unique<State>(*other.state_)) {}
ApexEarlyScaler::~ApexEarlyScaler() = default;

bool ApexEarlyScaler::is_enabled() const { return state_->enabled; }

double ApexEarlyScaler::get_scale() const { return state_->enabled ? state_->current().scale : 1; }

ScalerEvent ApexEarlyScaler::described() const { return state_->current().described(); }

LossScaler::Saved ApexEarlyScaler::saved() const {
  Saved out;
  for (std::size_t id = 0; id < state_->scales.size(); ++id) {
    out.emplace_back(fmt::format("loss_scaler{}.loss_scale", id), state_->scales[id].scale);
    out.emplace_back(fmt::format("loss_scaler{}.unskipped", id), static_cast<double>(state_->scales[id].unskipped));
  }
  return out;
}

void ApexEarlyScaler::load(const Saved& saved) {
  for (std::size_t id = 0; id < state_->scales.size(); ++id) {
    load_number(saved, fmt::format("loss_scaler{}.loss_scale", id), state_->scales[id].scale);
    load_number(saved, fmt::format("loss_scaler{}.unskipped", id), state_->scales[id].unskipped);
  }
}

bool ApexEarlyScaler::run_block(std::uint32_t loss_id, const Tensor& loss, Optimizer& optimizer, const Run& run) {
  ApexScale& scale = state_->scales[loss_id];
  Tensor scaled;
  {
    const ScopedPhase phase(Phase::kScale);
    scaled = mul(loss, scale.scale);
    tell(ScalerAction::kScale);
  }
  run(scaled);
  bool found = false;
  {
    const ScopedPhase phase(Phase::kUnscale);
    const NoGradGuard no_grad;
    std::vector<amp::NamedGradient> gradients;
    for (const auto& [path, tensor] : optimizer.with_gradients()) {
      if (tensor.grad().defined()) gradients.push_back({path, tensor.grad()});
    }
    found = agreed(amp::check_and_unscale_(std::move(gradients), static_cast<float>(1 / scale.scale)).value_or(false));
  }
  tell(ScalerAction::kUnscale, number_of(optimizer), found);
  scale.next(found);
  tell(ScalerAction::kUpdate, /*optimizer=*/0, found);
  return found;
}

bool ApexEarlyScaler::step_unless(bool skips, Optimizer& optimizer) {
  message_ = skips ? "Gradient overflow, skipping update" : "";
  if (!skips) optimizer.step();
  tell(skips ? ScalerAction::kSkip : ScalerAction::kStep, number_of(optimizer), skips);
  return !skips;
}

namespace {

void run_backward(const Tensor& scaled) {
  const ScopedPhase phase(Phase::kBackward);
  scaled.backward();
}

}  // namespace

ApexHandle::ApexHandle(const ApexInitOptions& options) : ApexEarlyScaler(options.enabled, 1), options_(options) {}

AutocastOptions ApexHandle::casts() const {
  return {.enabled = options_.enabled, .cache = options_.enable_caching, .lists = CastLists::kApex};
}

void ApexHandle::scale_loss(const Tensor& loss, Optimizer& optimizer, const Run& run) {
  if (!is_enabled()) return run(loss);
  if (wrapped_) {
    throw std::invalid_argument(
        "After calling `handle.wrap_optimizer()`, you must explicitly use `optimizer.scale_loss(loss)`.");
  }
  if (run_block(0, loss, optimizer, run)) state_->skipping.push_back(&optimizer);
  clear_autocast_cache();
}

void ApexHandle::backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep&) {
  scale_loss(loss, optimizer, run_backward);
}

bool ApexHandle::step(Optimizer& optimizer) {
  return step_unless(std::erase(state_->skipping, &optimizer) > 0, optimizer);
}

ApexWrappedOptimizer ApexHandle::wrap_optimizer(Optimizer& optimizer, std::uint32_t num_loss) {
  wrapped_ = true;
  return {is_enabled(), optimizer, num_loss};
}

ApexWrappedOptimizer::ApexWrappedOptimizer(bool enabled, Optimizer& optimizer, std::uint32_t num_loss)
    : ApexEarlyScaler(enabled, num_loss), optimizer_(&optimizer) {}

void ApexWrappedOptimizer::scale_loss(const Tensor& loss, const Run& run) {
  if (!is_enabled()) return run(loss);
  const std::uint32_t id = state_->next_loss;
  if (id >= state_->scales.size()) {
    fail("scale_loss", fmt::format("{} losses in a step, as it was wrapped for", state_->scales.size()), "one more");
  }
  // Once they are mixed a loss cannot be unscaled by itself.
  std::vector<NamedTensor> targets = optimizer_->with_gradients();
  std::vector<Tensor> earlier(targets.size());
  if (id > 0) {
    for (std::size_t i = 0; i < targets.size(); ++i) earlier[i] = targets[i].tensor.grad();
    optimizer_->zero_grad();
  }
  state_->overflowed[id] = run_block(id, loss, *optimizer_, run);
  ++state_->next_loss;
  const ScopedPhase phase(Phase::kUnscale);
  const NoGradGuard no_grad;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!earlier[i].defined()) continue;
    const ScopedModule module(targets[i].path);
    const Tensor fresh = targets[i].tensor.grad();
    targets[i].tensor.set_grad(fresh.defined() ? add(fresh, earlier[i]) : earlier[i]);
  }
}

void ApexWrappedOptimizer::backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep&) {
  if (&optimizer != optimizer_) fail("scale_loss", "the optimizer that it wraps", "another");
  scale_loss(loss, run_backward);
}

bool ApexWrappedOptimizer::step() {
  state_->next_loss = 0;
  if (is_enabled()) clear_autocast_cache();  // Apex drops the casts of its parameters
  const bool skips = std::ranges::find(state_->overflowed, true) != state_->overflowed.end();
  state_->overflowed.assign(state_->overflowed.size(), false);
  return step_unless(skips, *optimizer_);
}

bool ApexWrappedOptimizer::step(Optimizer& optimizer) {
  if (&optimizer != optimizer_) fail("step", "the optimizer that it wraps", "another");
  return step();
}

}  // namespace nanhunt::engine
