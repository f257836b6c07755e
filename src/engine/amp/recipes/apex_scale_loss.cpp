// SPDX-License-Identifier: Apache-2.0
// amp.scale_loss: several losses with a scaler each, gradients that add up unscaled, and steps that are skipped.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/scaler_ops.h"
#include "src/engine/amp/scalers/apex_scale.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

struct ApexAmp::State {
  struct OfOptimizer {
    const Optimizer* optimizer;
    bool has_scaled_gradients = false;  // of a block that delayed
    bool has_stepped = false;           // its masters' gradients are used up
    std::string skips;                  // its next step, and what is said then
  };
  OfOptimizer& of(const Optimizer& optimizer) {
    for (OfOptimizer& known : optimizers) {
      if (known.optimizer == &optimizer) return known;
    }
    return optimizers.emplace_back(OfOptimizer{.optimizer = &optimizer, .skips = {}});
  }

  ApexAmpOptions options;
  std::vector<ApexScale> scales;  // by loss
  std::vector<bool> told;         // which of them observers know
  std::vector<OfOptimizer> optimizers;
  std::uint32_t current = 0;      // loss
  std::optional<double> used;     // its scale, in the step at hand
};

ApexAmp::ApexAmp(const ApexAmpOptions& options) : state_(std::make_unique<State>()) {
  if (options.num_losses == 0) fail("amp.initialize", "one loss or more", "0");
  state_->options = options;
  for (std::uint32_t id = 0; id < options.num_losses; ++id) {
    ApexScalerOptions own = options.scaler;
    own.loss_id = static_cast<int>(id);
    state_->scales.emplace_back(own);
  }
  state_->told.assign(options.num_losses, false);
}

ApexAmp::~ApexAmp() = default;

namespace {

// Gradients of one optimizer's parameters that were there before a block.
struct PutAside {
  Optimizer* optimizer;
  std::vector<Tensor> gradients;  // by parameter; undefined: none
};

PutAside put_gradients_aside(Optimizer& optimizer) {
  PutAside aside{&optimizer, {}};
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    Tensor parameter = optimizer.parameters()[i].tensor;
    // The sum is the master's.
    aside.gradients.push_back(optimizer.master(i).defined() ? Tensor() : parameter.grad());
    parameter.set_grad({});
  }
  return aside;
}

// New gradients, in fp32 where an earlier one is added to them, and where they belong.
struct NewGradient {
  amp::NamedGradient named;
  Tensor target, earlier;
};

bool unscale_and_add(Optimizer& optimizer, const PutAside* aside, double scale) {
  const ScopedPhase phase(Phase::kUnscale);
  const NoGradGuard no_grad;
  std::vector<NewGradient> fresh;
  std::vector<amp::NamedGradient> to_check;
  for (std::size_t i = 0; i < optimizer.parameters().size(); ++i) {
    const auto& [path, parameter] = optimizer.parameters()[i];
    const Tensor master = optimizer.master(i);
    Tensor target = master.defined() ? master : parameter;
    const Tensor earlier = master.defined() ? master.grad() : aside ? aside->gradients[i] : Tensor();
    Tensor grad = parameter.grad();
    if (!grad.defined()) {
      if (earlier.defined()) target.set_grad(earlier);
      continue;
    }
    const ScopedModule module(path);
    if (master.defined() || earlier.defined()) grad = to(grad, DType::kF32);
    fresh.push_back({{path, grad}, target, earlier});
    to_check.push_back({path, grad});
  }
  const bool found = amp::check_and_unscale_(std::move(to_check), static_cast<float>(1 / scale)).value_or(false);
  for (NewGradient& made : fresh) {
    const ScopedModule module(made.named.path);
    if (made.earlier.defined()) add_(made.named.grad, made.earlier);
    made.target.set_grad(to(made.named.grad, made.target.dtype()));
  }
  return found;
}

}  // namespace

void ApexAmp::scale_loss(const Tensor& loss, const std::vector<Optimizer*>& optimizers, const ScaleLoss& options,
                         const std::function<void(const Tensor& scaled)>& run) {
  State& state = *state_;
  if (options.loss_id >= state.scales.size()) {
    fail("amp.scale_loss", fmt::format("a loss_id below num_losses={}", state.scales.size()),
         std::to_string(options.loss_id));
  }
  ApexScale& scale = state.scales[options.loss_id];
  state.current = options.loss_id;
  state.used = scale.scale;
  std::vector<PutAside> aside;
  for (Optimizer* optimizer : optimizers) {
    State::OfOptimizer& known = state.of(*optimizer);
    if (std::exchange(known.has_stepped, false)) {
      for (std::size_t i = 0; i < optimizer->parameters().size(); ++i) {
        if (Tensor master = optimizer->master(i); master.defined()) master.set_grad({});
      }
    }
    if (!options.delay_unscale && !known.has_scaled_gradients) aside.push_back(put_gradients_aside(*optimizer));
  }
  if (!has_observers()) {
    state.told.assign(state.told.size(), false);
  } else if (!state.told[options.loss_id]) {
    const bool is_first = std::find(state.told.begin(), state.told.end(), true) == state.told.end();
    state.told[options.loss_id] = true;
    if (!is_first) tell(ScalerAction::kCreate);  // the first is told of by itself
  }
  Tensor scaled;
  {
    const ScopedPhase phase(Phase::kScale);
    scaled = mul(to(loss, DType::kF32), scale.scale);
    tell(ScalerAction::kScale);
  }
  run(scaled);
  if (options.delay_unscale) {
    for (Optimizer* optimizer : optimizers) state.of(*optimizer).has_scaled_gradients = true;
    return;
  }
  bool found = false;
  for (Optimizer* optimizer : optimizers) {
    const auto its = std::find_if(aside.begin(), aside.end(), [&](const PutAside& a) { return a.optimizer == optimizer; });
    const bool own = unscale_and_add(*optimizer, its == aside.end() ? nullptr : &*its, scale.scale);
    const bool bad = scale.dynamic() && agreed(own);
    state.of(*optimizer).has_scaled_gradients = false;
    tell(ScalerAction::kUnscale, number_of(*optimizer), bad);
    found = found || bad;
  }
  const std::string said = scale.next(found);
  tell(ScalerAction::kUpdate, /*optimizer=*/0, found, said);
  if (!found) return;
  for (Optimizer* optimizer : optimizers) {
    State::OfOptimizer& known = state.of(*optimizer);
    if (known.skips.empty()) known.skips = said;
  }
}

void ApexAmp::backward(const Tensor& loss, Optimizer& optimizer, const LossOfStep& which) {
  scale_loss(loss, {&optimizer}, {.loss_id = which.id, .delay_unscale = state_->options.delay_unscale && !which.last},
             [](const Tensor& scaled) {
               const ScopedPhase phase(Phase::kBackward);
               scaled.backward();
             });
}

bool ApexAmp::unscales_each_backward() const { return !state_->options.delay_unscale; }

bool ApexAmp::step(Optimizer& optimizer) {
  State::OfOptimizer& known = state_->of(optimizer);
  message_ = std::exchange(known.skips, {});
  known.has_stepped = true;
  const bool skips = !message_.empty();
  if (!skips) optimizer.step();
  tell(skips ? ScalerAction::kSkip : ScalerAction::kStep, number_of(optimizer), skips);
  return !skips;
}

void ApexAmp::update() { state_->used.reset(); }

double ApexAmp::get_scale() const { return state_->used.value_or(state_->scales[state_->current].scale); }

double ApexAmp::loss_scale(std::uint32_t loss_id) const { return state_->scales.at(loss_id).scale; }

LossScaler::Saved ApexAmp::saved() const {
  Saved out;
  for (std::size_t id = 0; id < state_->scales.size(); ++id) {
    out.emplace_back(fmt::format("loss_scaler{}.loss_scale", id), state_->scales[id].scale);
    out.emplace_back(fmt::format("loss_scaler{}.unskipped", id), static_cast<double>(state_->scales[id].unskipped));
  }
  return out;
}

void ApexAmp::load(const Saved& saved) {
  for (std::size_t id = 0; id < state_->scales.size(); ++id) {
    load_number(saved, fmt::format("loss_scaler{}.loss_scale", id), state_->scales[id].scale);
    load_number(saved, fmt::format("loss_scaler{}.unskipped", id), state_->scales[id].unskipped);
  }
  state_->optimizers.clear();
  state_->used.reset();
}

ScalerEvent ApexAmp::described() const { return state_->scales[state_->current].described(); }
bool ApexAmp::looks() const { return state_->scales[state_->current].dynamic(); }

std::unique_ptr<LossScaler> make_scaler(const ApexAmpOptions& options) { return std::make_unique<ApexAmp>(options); }

}  // namespace nanhunt::engine
