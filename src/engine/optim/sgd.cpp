// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/ops.h"
#include "src/engine/optim/fused.h"
#include "src/engine/optim/stepped_optimizer.h"

namespace nanhunt::engine {
namespace {

std::vector<std::string_view> state_names(const OptimizerOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum_buffer"};
}

// Without dampening: a buffer of zeros times momentum plus g is the g it should start from.
class Sgd : public SteppedOptimizer {
 public:
  Sgd(std::vector<NamedTensor> parameters, const OptimizerOptions& options)
      : SteppedOptimizer(std::move(parameters), options, state_names(options)) {}

 private:
  void update(Slot& slot, Tensor& target, const Tensor& grad) override {
    if (options_.impl == OptimizerImpl::kFused) {
      fused_sgd_(target, grad, slot.state.empty() ? Tensor() : slot.state[0], options_);
      return;
    }
    Tensor direction = grad;
    if (options_.weight_decay != 0) direction = add(direction, target, options_.weight_decay);
    if (options_.momentum != 0) {
      Tensor& buffer = slot.state[0];
      mul_(buffer, options_.momentum);
      add_(buffer, direction);
      direction = options_.nesterov ? add(direction, buffer, options_.momentum) : buffer;
    }
    add_(target, direction, -options_.lr);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(std::vector<NamedTensor> parameters, const OptimizerOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}

}  // namespace nanhunt::engine
