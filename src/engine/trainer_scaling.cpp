// SPDX-License-Identifier: Apache-2.0
// Loss scale and clipping as a callback: the loop knows nothing of them.
#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/hooks.h"
#include "src/engine/trainer_impl.h"

namespace nanhunt::engine {
namespace {

class Scaling final : public Callback {
 public:
  explicit Scaling(Trainer::Impl& run) : run_(run) {}

  bool on_backward_begin(Tensor& loss, const LossOfStep& which) override {
    if (!run_.scaler) return false;
    const ScopedModule module("<loss>");
    run_.scaler->backward(loss, *run_.optimizer, which);  // a library may wrap both in one call
    return true;
  }

  void on_backward_end() override {
    const TrainerOptions& options = run_.options;
    if (options.clip_norm && options.clip_before_unscale) {
      clip_grad_norm_(run_.optimizer->parameters(), *options.clip_norm);
    }
    if (run_.scaler) run_.scaler->unscale_(*run_.optimizer);
    if (!options.clip_norm || options.clip_before_unscale) return;
    if (run_.scaler) {
      run_.scaler->clip(*run_.optimizer, *options.clip_norm);
    } else {
      clip_grad_norm_(run_.optimizer->with_gradients(), *options.clip_norm);
    }
  }

  std::optional<bool> on_step() override {
    if (!run_.scaler) return std::nullopt;
    return run_.scaler->step(*run_.optimizer);
  }

  void on_step_end() override {
    if (run_.scaler) run_.scaler->update();
  }

 private:
  Trainer::Impl& run_;
};

}  // namespace

std::unique_ptr<Callback> make_scaling(Trainer::Impl& run) { return std::make_unique<Scaling>(run); }

}  // namespace nanhunt::engine
