// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW by the formulas of torch.optim. kForLoop runs the ops an eager for-loop optimizer runs, so every
// stored intermediate rounds; kFused does one kernel per parameter in op math, and only p, m and v round.
// fp32 masters: the optimizer steps an fp32 copy of each 16-bit parameter and copies it back (RNE). Its gradient is the
// master's, if it has one (a loss scaler unscales into it), else the parameter's, widened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

enum class OptimizerImpl : std::uint8_t { kForLoop, kFused };

struct OptimizerOptions {
  std::string algorithm = "adam";  // "sgd", "adam", "adamw"
  double lr = 1e-3;
  double momentum = 0;      // sgd
  bool nesterov = false;    // sgd
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  // adamw: decoupled
  OptimizerImpl impl = OptimizerImpl::kForLoop;
  bool fp32_masters = false;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // One update from .grad of every parameter that has one; ops run in phase optimizer with the parameter's path
  // as module. Marks parameters (and state) for observers afterwards.
  virtual void step() = 0;
  void zero_grad();  // drops every .grad, those of masters too
  virtual const OptimizerOptions& options() const = 0;
  virtual void set_lr(double lr);  // of the steps to come; options() has it
  virtual std::vector<NamedTensor> named_state() const = 0;    // "fc1.weight.exp_avg", ".exp_avg_sq", ".master"
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  virtual Tensor master(std::size_t /*index*/) const { return {}; }  // of a parameter; undefined: none
  // What step() changes first: of each parameter its fp32 master, or itself. Under the parameter's path, in its order.
  std::vector<NamedTensor> stepped() const;
  // Of each parameter that tensor whose .grad step() takes: the master where it has one, else the parameter.
  std::vector<NamedTensor> with_gradients() const;
  Tensor gradient(std::size_t index) const;  // its .grad
  // Everything needed to go on exactly from here: state tensors (deep copies) and step counts.
  struct Snapshot {
    std::vector<Tensor> tensors;
    std::vector<std::int64_t> counters;
  };
  virtual Snapshot snapshot() const = 0;
  virtual void restore(const Snapshot& snapshot) = 0;

 protected:
  std::vector<NamedTensor> parameters_;
};

std::unique_ptr<Optimizer> make_optimizer(std::vector<NamedTensor> parameters, const OptimizerOptions& options);

}  // namespace nanhunt::engine
