// SPDX-License-Identifier: Apache-2.0
// What SGD, Adam and AdamW share: per-parameter slots with master, state and step count, the order of a step,
// marks, snapshots. An algorithm is one update() of one tensor.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/engine/optimizer.h"

namespace nanhunt::engine {

class SteppedOptimizer : public Optimizer {
 public:
  SteppedOptimizer(std::vector<NamedTensor> parameters, OptimizerOptions options,
                   const std::vector<std::string_view>& state_names);

  void step() override;
  const OptimizerOptions& options() const override { return options_; }
  void set_lr(double lr) override;
  std::vector<NamedTensor> named_state() const override;
  Tensor master(std::size_t index) const override { return slots_.at(index).master; }
  Snapshot snapshot() const override;
  void restore(const Snapshot& snapshot) override;

 protected:
  struct Slot {
    Tensor master;                // fp32 copy that is stepped instead of the parameter; undefined: none
    std::vector<Tensor> state;    // in the order of the state names
    std::int64_t step_count = 0;  // of this parameter, including the current one
  };
  // Updates `target` (parameter or master) and the slot's state from `grad`, all of one dtype.
  virtual void update(Slot& slot, Tensor& target, const Tensor& grad) = 0;

  OptimizerOptions options_;

 private:
  std::vector<NamedTensor> state_of(std::size_t index) const;

  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;  // one per parameter
};

std::unique_ptr<Optimizer> make_sgd(std::vector<NamedTensor> parameters, const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_adam(std::vector<NamedTensor> parameters,
                                     const OptimizerOptions& options);  // and AdamW

}  // namespace nanhunt::engine
