// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <utility>

#include "src/engine/ops/op.h"
#include "src/engine/optim/stepped_optimizer.h"

namespace nanhunt::engine {
namespace {

void expect_option(bool good, std::string_view name, std::string_view expected, double got) {
  if (!good) fail("make_optimizer", std::string(name) + " " + std::string(expected), std::to_string(got));
}

}  // namespace

void Optimizer::zero_grad() {
  for (NamedTensor& parameter : parameters_) parameter.tensor.set_grad({});
  for (NamedTensor& target : stepped()) target.tensor.set_grad({});
}

std::vector<NamedTensor> Optimizer::stepped() const {
  std::vector<NamedTensor> out = parameters_;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (Tensor own = master(i); own.defined()) out[i].tensor = std::move(own);
  }
  return out;
}

std::vector<NamedTensor> Optimizer::with_gradients() const {
  std::vector<NamedTensor> out = stepped();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].tensor.grad().defined()) out[i] = parameters_[i];
  }
  return out;
}

Tensor Optimizer::gradient(std::size_t index) const {
  const Tensor own = master(index);
  return own.defined() && own.grad().defined() ? own.grad() : parameters_.at(index).tensor.grad();
}

void Optimizer::set_lr(double lr) { fail("set_lr", "an optimizer whose learning rate can change", std::to_string(lr)); }

std::unique_ptr<Optimizer> make_optimizer(std::vector<NamedTensor> parameters, const OptimizerOptions& options) {
  const auto is_rate = [](double x) { return x >= 0 && x < 1; };
  expect_option(std::isfinite(options.lr) && options.lr >= 0, "lr", "of 0 or more", options.lr);
  expect_option(is_rate(options.momentum), "momentum", "in [0, 1)", options.momentum);
  expect_option(is_rate(options.beta1), "beta1", "in [0, 1)", options.beta1);
  expect_option(is_rate(options.beta2), "beta2", "in [0, 1)", options.beta2);
  expect_option(options.eps >= 0, "eps", "of 0 or more", options.eps);
  expect_option(options.weight_decay >= 0, "weight_decay", "of 0 or more", options.weight_decay);
  if (options.nesterov && options.momentum == 0) fail("make_optimizer", "momentum with nesterov", "momentum 0");
  if (options.algorithm == "sgd") return make_sgd(std::move(parameters), options);
  if (options.algorithm == "adam" || options.algorithm == "adamw") return make_adam(std::move(parameters), options);
  fail("make_optimizer", "algorithm sgd, adam or adamw", "'" + options.algorithm + "'");
}

}  // namespace nanhunt::engine
