// SPDX-License-Identifier: Apache-2.0
#include "src/engine/optim/fused.h"

#include <cmath>
#include <initializer_list>

#include "nanhunt/engine/hooks.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// Elements of a contiguous tensor in op math; stores round once.
template <typename Math>
class Elements {
 public:
  explicit Elements(const Tensor& tensor)
      : dtype_(tensor.dtype()), size_(dtype_size(dtype_)), at_(static_cast<std::byte*>(Tensor(tensor).raw())) {}
  Math load(std::int64_t i) const { return static_cast<Math>(load_as_f64(dtype_, at_ + offset(i))); }
  void store(std::int64_t i, Math value) const { store_from_f64(dtype_, at_ + offset(i), value); }

 private:
  std::size_t offset(std::int64_t i) const { return static_cast<std::size_t>(i) * size_; }
  DType dtype_;
  std::size_t size_;
  std::byte* at_;
};

struct Written {
  std::string_view slot;
  Tensor* tensor;
};

// Bumps versions and tells observers: every written tensor is an output, and an input that was overwritten.
void finish_in_place(std::string_view op, const Tensor& grad, std::initializer_list<Written> written,
                     std::initializer_list<OpScalar> scalars) {
  for (const Written& w : written) w.tensor->storage()->bump_version();
  if (!has_observers()) return;
  std::vector<OpArgument> inputs, outputs;
  for (const Written& w : written) {
    inputs.push_back({w.slot, w.tensor, w.tensor->version() - 1, ArgRole::kOverwritten});
    outputs.push_back({w.slot, w.tensor, w.tensor->version(), ArgRole::kRead});
  }
  inputs.insert(inputs.begin() + 1, {"grad", &grad, grad.version(), ArgRole::kRead});
  notify_op({.op = op,
             .phase = current_phase(),
             .module = current_module(),
             .compute_dtype = op_math(grad.dtype()),
             .inputs = inputs,
             .outputs = outputs,
             .scalars = std::span(scalars.begin(), scalars.size())});
}

void expect_same(std::string_view op, const Tensor& self, const Tensor& other) {
  if (other.dtype() != self.dtype() || other.sizes() != self.sizes()) fail(op, describe(self), describe(other));
}

template <typename Math>
void run_sgd(const Tensor& self, const Tensor& grad, const Tensor& buffer, const OptimizerOptions& o) {
  const Elements<Math> p(self), g(grad);
  const auto lr = static_cast<Math>(o.lr), decay = static_cast<Math>(o.weight_decay);
  const auto momentum = static_cast<Math>(o.momentum);
  for (std::int64_t i = 0, n = self.numel(); i < n; ++i) {
    const Math weight = p.load(i);
    Math direction = g.load(i);
    if (decay != 0) direction += decay * weight;
    if (buffer.defined()) {
      const Elements<Math> b(buffer);
      const Math velocity = momentum * b.load(i) + direction;
      b.store(i, velocity);
      direction = o.nesterov ? direction + momentum * velocity : velocity;
    }
    p.store(i, weight - lr * direction);
  }
}

template <typename Math>
void run_adam(const Tensor& self, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
              std::int64_t step, const OptimizerOptions& o) {
  const Elements<Math> p(self), gradient(grad), m(exp_avg), v(exp_avg_sq);
  const bool decoupled = o.algorithm == "adamw";
  const auto t = static_cast<double>(step);
  const auto step_size = static_cast<Math>(o.lr / (1 - std::pow(o.beta1, t)));
  const auto correction = static_cast<Math>(std::sqrt(1 - std::pow(o.beta2, t)));
  const auto decay = static_cast<Math>(decoupled ? 1 - o.lr * o.weight_decay : o.weight_decay);
  const auto eps = static_cast<Math>(o.eps), beta2 = static_cast<Math>(o.beta2);
  const auto weight1 = static_cast<Math>(1 - o.beta1), weight2 = static_cast<Math>(1 - o.beta2);
  for (std::int64_t i = 0, n = self.numel(); i < n; ++i) {
    Math weight = p.load(i), g = gradient.load(i);
    if (decoupled) {
      weight *= decay;
    } else if (decay != 0) {
      g += decay * weight;
    }
    const Math old_m = m.load(i);
    const Math new_m = old_m + weight1 * (g - old_m);
    const Math new_v = beta2 * v.load(i) + weight2 * g * g;
    m.store(i, new_m);
    v.store(i, new_v);
    p.store(i, weight - step_size * new_m / (std::sqrt(new_v) / correction + eps));
  }
}

}  // namespace

void fused_sgd_(Tensor& self, const Tensor& grad, Tensor buffer, const OptimizerOptions& options) {
  constexpr std::string_view kOp = "_fused_sgd_";
  expect_same(kOp, self, grad);
  const Tensor g = grad.is_contiguous() ? grad : grad.clone();
  const bool wide = self.dtype() == DType::kF64;
  wide ? run_sgd<double>(self, g, buffer, options) : run_sgd<float>(self, g, buffer, options);
  const std::initializer_list<OpScalar> scalars = {
      {"lr", options.lr}, {"momentum", options.momentum}, {"weight_decay", options.weight_decay}};
  if (buffer.defined()) {
    finish_in_place(kOp, grad, {{"self", &self}, {"momentum_buffer", &buffer}}, scalars);
  } else {
    finish_in_place(kOp, grad, {{"self", &self}}, scalars);
  }
}

void fused_adam_(Tensor& self, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq, std::int64_t step,
                 const OptimizerOptions& options) {
  const std::string_view op = options.algorithm == "adamw" ? "_fused_adamw_" : "_fused_adam_";
  expect_same(op, self, grad);
  const Tensor g = grad.is_contiguous() ? grad : grad.clone();
  const bool wide = self.dtype() == DType::kF64;
  wide ? run_adam<double>(self, g, exp_avg, exp_avg_sq, step, options)
       : run_adam<float>(self, g, exp_avg, exp_avg_sq, step, options);
  finish_in_place(op, grad, {{"self", &self}, {"exp_avg", &exp_avg}, {"exp_avg_sq", &exp_avg_sq}},
                  {{"lr", options.lr},
                   {"beta1", options.beta1},
                   {"beta2", options.beta2},
                   {"eps", options.eps},
                   {"weight_decay", options.weight_decay},
                   {"step", static_cast<double>(step)}});
}

}  // namespace nanhunt::engine
