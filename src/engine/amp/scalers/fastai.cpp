// SPDX-License-Identifier: Apache-2.0
// The MixedPrecision callback of fastai v1. It says nothing when gradients are dropped.
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {
namespace {

class Fastai final : public Family<Fastai> {
 public:
  explicit Fastai(const FastaiScalerOptions& options)
      : options_(options), scale_(options.loss_scale.value_or(options.dynamic ? 0x1p16 : 512)) {}

  double get_scale() const override { return scale_; }
  // It clips where it has copied.
  double clip(Optimizer& optimizer, double max_norm) override {
    return dropped_ ? 0 : LossScaler::clip(optimizer, max_norm);
  }
  void for_each_number(const auto& call) {
    call("scale", scale_);
    call("noskip", noskip_);
    call("copied", copied_);
  }

 private:
  bool looks() const override { return options_.dynamic && scale_ > 1; }
  Use use_of(bool found_inf) const override { return found_inf ? Use::kStepWithoutGradients : Use::kStep; }

  // The sum of each gradient is looked at; only if all are finite they are copied to the masters, and divided there.
  std::optional<bool> check_and_unscale(Optimizer& optimizer) override {
    const std::vector<NamedTensor> targets = optimizer.stepped();
    const std::vector<NamedTensor>& parameters = optimizer.parameters();
    std::optional<bool> found;
    for (const auto& [path, parameter] : parameters) {
      if (!parameter.grad().defined()) continue;
      const ScopedModule module(path);
      const bool bad = looks() && !std::isfinite(sum(to(parameter.grad(), DType::kF32)).item());
      found = found.value_or(false) || bad;
    }
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const auto& [path, parameter] = parameters[i];
      if (!parameter.grad().defined()) continue;
      Tensor target = targets[i].tensor;
      const ScopedModule module(path);
      if (*found) {
        Tensor(parameter).set_grad({});
        if (copied_ != 0) target.set_grad(Tensor::zeros(target.sizes(), target.dtype(), target.device()));
      } else {
        target.set_grad(div(to(parameter.grad(), target.dtype()), scale_));
      }
    }
    dropped_ = found.value_or(false);
    if (found && !*found) copied_ = 1;
    return found;
  }

  std::string next(bool found_inf) override {
    if (!options_.dynamic) return {};
    if (found_inf) {
      scale_ /= 2;
      noskip_ = 0;
    } else if (++noskip_ >= options_.max_noskip && scale_ < options_.max_scale) {
      scale_ *= 2;
      noskip_ = 0;
    }
    return {};
  }

  ScalerEvent described() const override {
    ScalerEvent event;
    event.scale = scale_;
    event.growth_tracker = scale_ < options_.max_scale ? noskip_ : 0;  // at the cap it counts on and never grows
    event.dynamic = options_.dynamic;
    event.growth_factor = options_.dynamic ? 2 : 1;
    event.backoff_factor = options_.dynamic ? 0.5 : 1;
    event.growth_interval = options_.max_noskip;
    event.text = options_.dynamic ? "fastai" : "fastai, static";
    return event;
  }

  FastaiScalerOptions options_;
  double scale_;
  std::int64_t noskip_ = 0;
  bool dropped_ = false;  // the gradients of the step at hand
  int copied_ = 0;  // masters have a gradient to be zeroed, and no longer none
};

}  // namespace

std::unique_ptr<LossScaler> make_scaler(const FastaiScalerOptions& options) {
  return std::make_unique<Fastai>(options);
}

}  // namespace nanhunt::engine
