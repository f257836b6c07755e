// SPDX-License-Identifier: Apache-2.0
// An optimizer that only counts its steps, over parameters whose gradients a test sets.
#pragma once

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/optimizer.h"

namespace nanhunt::engine::testing {

class CountingOptimizer : public Optimizer {
 public:
  explicit CountingOptimizer(const std::string& name, std::size_t parameters = 1) {
    for (std::size_t i = 0; i < parameters; ++i) {
      parameters_.push_back({name + std::to_string(i), Tensor::zeros({1}, DType::kF32).set_requires_grad(true)});
    }
  }
  void step() override { ++steps; }
  const OptimizerOptions& options() const override { return options_; }
  std::vector<NamedTensor> named_state() const override { return {}; }
  Snapshot snapshot() const override { return {}; }
  void restore(const Snapshot&) override {}

  // The gradient of parameter i becomes one element with this value; the parameter takes its format.
  void set_gradient(std::size_t i, double value, DType dtype = DType::kF32) {
    Tensor& parameter = parameters_[i].tensor;
    if (parameter.dtype() != dtype) parameter = Tensor::zeros({1}, dtype).set_requires_grad(true);
    parameter.set_grad(Tensor::full({1}, value, dtype));
  }
  float gradient(std::size_t i) const { return *parameters_[i].tensor.grad().data<float>(); }

  int steps = 0;

 private:
  OptimizerOptions options_;
};

inline std::uint32_t bits_of(double value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)); }

}  // namespace nanhunt::engine::testing
