// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "src/engine/optim/fused.h"
#include "src/engine/optim/stepped_optimizer.h"

namespace nanhunt::engine {
namespace {

// Adam and AdamW. The for-loop form stores every intermediate in the state's dtype, in this order;
// that is where 16-bit state loses eps and small squares (README.md).
class Adam : public SteppedOptimizer {
 public:
  Adam(std::vector<NamedTensor> parameters, const OptimizerOptions& options)
      : SteppedOptimizer(std::move(parameters), options, {"exp_avg", "exp_avg_sq"}) {}

 private:
  void update(Slot& slot, Tensor& target, const Tensor& grad) override {
    const OptimizerOptions& o = options_;
    Tensor &exp_avg = slot.state[0], &exp_avg_sq = slot.state[1];
    if (o.impl == OptimizerImpl::kFused) {
      fused_adam_(target, grad, exp_avg, exp_avg_sq, slot.step_count, o);
      return;
    }
    const bool decoupled = o.algorithm == "adamw";
    Tensor g = grad;
    if (o.weight_decay != 0) {
      if (decoupled) {
        mul_(target, 1 - o.lr * o.weight_decay);
      } else {
        g = add(grad, target, o.weight_decay);
      }
    }
    lerp_(exp_avg, g, 1 - o.beta1);
    mul_(exp_avg_sq, o.beta2);
    addcmul_(exp_avg_sq, g, g, 1 - o.beta2);
    const auto t = static_cast<double>(slot.step_count);
    const double step_size = o.lr / (1 - std::pow(o.beta1, t));
    Tensor denom = div(sqrt(exp_avg_sq), std::sqrt(1 - std::pow(o.beta2, t)));
    add_(denom, o.eps);
    addcdiv_(target, exp_avg, denom, -step_size);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adam(std::vector<NamedTensor> parameters, const OptimizerOptions& options) {
  return std::make_unique<Adam>(std::move(parameters), options);
}

}  // namespace nanhunt::engine
