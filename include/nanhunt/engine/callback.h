// SPDX-License-Identifier: Apache-2.0
// What plugs into the loop of a Trainer, at points with fastai's names. The loop is the same whatever is plugged in:
// loss scaling, casts, schedules of the learning rate, the learning rate finder.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "nanhunt/engine/loss_scaler.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct Batch;
struct StepResult;
class Trainer;

// In the order of a step; the first three for each micro-batch. Training has no epochs here, and so no points of them.
class Callback {
 public:
  virtual ~Callback() = default;
  // What the model and the loss get. Phase data.
  virtual void on_batch_begin(Batch& /*batch*/) {}
  // What the model has made, before the loss sees it. Phase loss.
  virtual void on_loss_begin(Tensor& /*output*/) {}
  // What backward starts from. True: it has run here, and the loop leaves it out (fastai's skip_bwd).
  virtual bool on_backward_begin(Tensor& /*loss*/, const LossOfStep& /*which*/) { return false; }
  // All gradients are there; what is done to them here the optimizer will use. Once a step.
  virtual void on_backward_end() {}
  // Instead of the optimizer's step: whether it ran (false is fastai's skip_step). Nothing: the loop goes on asking, and
  // runs it where nobody has answered.
  virtual std::optional<bool> on_step() { return std::nullopt; }
  // The optimizer ran or was held back. Throws std::runtime_error to end training with this step.
  virtual void on_step_end() {}
  // The step is over and told. What it changes the next step begins with. `ended_by` set here ends training.
  virtual void on_batch_end(StepResult& /*result*/) {}
};

// Made with its trainer, which outlives it.
using CallbackFactory = std::function<std::unique_ptr<Callback>(Trainer&)>;

}  // namespace nanhunt::engine
