// SPDX-License-Identifier: Apache-2.0
#include "src/engine/optim/fused.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "nanhunt/engine/hooks.h"
#include "src/engine/backend.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

// A tensor of one dtype, a chunk at a time in op math: open() to read and change values, close() to store them, rounded
// once.
template <typename Math>
class Chunks {
 public:
  explicit Chunks(const Tensor& tensor) : reader_(tensor, tensor.sizes(), tensor.dtype()), writer_(tensor) {}
  Math* open(std::int64_t start, std::int64_t count) {
    const Math* values = reader_.read(start, count, buffer_);
    Math* place = writer_.target(start, buffer_);
    if (values != place) std::copy_n(values, count, place);
    return place;
  }
  void close(std::int64_t start, std::int64_t count) { writer_.commit(start, count, buffer_); }

 private:
  Reader<Math> reader_;
  Writer<Math> writer_;
  alignas(64) Math buffer_[kChunk];
};

struct Written {
  std::string_view slot;
  Tensor* tensor;
};

// Bumps versions and tells observers: every written tensor is an output, and an input that was overwritten.
void finish_in_place(std::string_view op, const Tensor& grad, std::initializer_list<Written> written,
                     std::initializer_list<OpScalar> scalars) {
  for (const Written& w : written) w.tensor->storage()->bump_version();
  if (!ops_observed()) return;
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
  Chunks<Math> weights(self), gradients(grad), velocities(buffer.defined() ? buffer : grad);
  const auto lr = static_cast<Math>(o.lr), decay = static_cast<Math>(o.weight_decay);
  const auto momentum = static_cast<Math>(o.momentum);
  const bool moves = buffer.defined();
  for (std::int64_t start = 0, n = self.numel(); start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    Math *__restrict p = weights.open(start, count), *__restrict g = gradients.open(start, count);
    Math* __restrict b = moves ? velocities.open(start, count) : nullptr;
    for (std::int64_t i = 0; i < count; ++i) {
      Math direction = g[i];
      if (decay != 0) direction += decay * p[i];
      if (moves) {
        b[i] = momentum * b[i] + direction;
        direction = o.nesterov ? direction + momentum * b[i] : b[i];
      }
      p[i] -= lr * direction;
    }
    weights.close(start, count);
    if (moves) velocities.close(start, count);
  }
}

void run_sgd_on_device(const Tensor& self, const Tensor& grad, const Tensor& buffer, const OptimizerOptions& o) {
  kernels::FusedSgdCall call;
  call.wide = self.dtype() == DType::kF64;
  call.nesterov = o.nesterov;
  call.lr = o.lr;
  call.momentum = o.momentum;
  call.weight_decay = o.weight_decay;
  call.count = self.numel();
  call.param = flat_array(self);
  call.grad = flat_array(grad);
  call.buffer = flat_array(buffer);
  if (call.count != 0) backend_of(self.device()).run(call);
}

template <typename Math>
void run_adam(const Tensor& self, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
              std::int64_t step, const OptimizerOptions& o) {
  Chunks<Math> weights(self), gradients(grad), first(exp_avg), second(exp_avg_sq);
  const bool decoupled = o.algorithm == "adamw";
  const auto t = static_cast<double>(step);
  const auto step_size = static_cast<Math>(o.lr / (1 - std::pow(o.beta1, t)));
  const auto correction = static_cast<Math>(std::sqrt(1 - std::pow(o.beta2, t)));
  const auto decay = static_cast<Math>(decoupled ? 1 - o.lr * o.weight_decay : o.weight_decay);
  const auto eps = static_cast<Math>(o.eps), beta2 = static_cast<Math>(o.beta2);
  const auto weight1 = static_cast<Math>(1 - o.beta1), weight2 = static_cast<Math>(1 - o.beta2);
  for (std::int64_t start = 0, n = self.numel(); start < n; start += kChunk) {
    const std::int64_t count = std::min(kChunk, n - start);
    Math *__restrict p = weights.open(start, count), *__restrict g = gradients.open(start, count);
    Math *__restrict m = first.open(start, count), *__restrict v = second.open(start, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const Math weight = decoupled ? p[i] * decay : p[i];
      const Math slope = !decoupled && decay != 0 ? g[i] + decay * weight : g[i];
      m[i] += weight1 * (slope - m[i]);
      v[i] = beta2 * v[i] + weight2 * slope * slope;
      p[i] = weight - step_size * m[i] / (std::sqrt(v[i]) / correction + eps);
    }
    weights.close(start, count);
    first.close(start, count);
    second.close(start, count);
  }
}

void run_adam_on_device(const Tensor& self, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                        const std::int64_t& step, const OptimizerOptions& o) {
  const auto step_size = [lr = o.lr, beta1 = o.beta1](std::int64_t t) {
    return lr / (1 - std::pow(beta1, static_cast<double>(t)));
  };
  const auto correction = [beta2 = o.beta2](std::int64_t t) {
    return std::sqrt(1 - std::pow(beta2, static_cast<double>(t)));
  };
  kernels::FusedAdamCall call;
  call.wide = self.dtype() == DType::kF64;
  call.decoupled = o.algorithm == "adamw";
  call.step_size = step_size(step);
  call.correction = correction(step);
  call.decay = call.decoupled ? 1 - o.lr * o.weight_decay : o.weight_decay;
  call.eps = o.eps;
  call.beta2 = o.beta2;
  call.weight1 = 1 - o.beta1;
  call.weight2 = 1 - o.beta2;
  call.count = self.numel();
  call.param = flat_array(self);
  call.grad = flat_array(grad);
  call.exp_avg = flat_array(exp_avg);
  call.exp_avg_sq = flat_array(exp_avg_sq);
  if (call.count != 0) backend_of(self.device()).run(call);
}

// Runs where the parameter is.
void expect_there(std::string_view op, std::initializer_list<const Tensor*> tensors, const Tensor& self) {
  common_device(op, tensors);
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined() || tensor->device() == self.device()) continue;
    fail(op, "everything on " + describe(self.device()), "one on " + describe(tensor->device()));
  }
}

}  // namespace

void fused_sgd_(Tensor& self, const Tensor& grad, Tensor buffer, const OptimizerOptions& options) {
  constexpr std::string_view kOp = "_fused_sgd_";
  expect_same(kOp, self, grad);
  const Tensor g = grad.is_contiguous() ? grad : grad.clone();
  const bool wide = self.dtype() == DType::kF64;
  expect_there(kOp, {&self, &grad, &buffer}, self);
  if (!on_cpu(self)) {
    run_sgd_on_device(self, g, buffer, options);
  } else {
    wide ? run_sgd<double>(self, g, buffer, options) : run_sgd<float>(self, g, buffer, options);
  }
  const std::initializer_list<OpScalar> scalars = {
      {"lr", options.lr}, {"momentum", options.momentum}, {"weight_decay", options.weight_decay}};
  if (buffer.defined()) {
    finish_in_place(kOp, grad, {{"self", &self}, {"momentum_buffer", &buffer}}, scalars);
  } else {
    finish_in_place(kOp, grad, {{"self", &self}}, scalars);
  }
}

void fused_adam_(Tensor& self, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq, const std::int64_t& step,
                 const OptimizerOptions& options) {
  const std::string_view op = options.algorithm == "adamw" ? "_fused_adamw_" : "_fused_adam_";
  expect_same(op, self, grad);
  const Tensor g = grad.is_contiguous() ? grad : grad.clone();
  const bool wide = self.dtype() == DType::kF64;
  expect_there(op, {&self, &grad, &exp_avg, &exp_avg_sq}, self);
  if (!on_cpu(self)) {
    run_adam_on_device(self, g, exp_avg, exp_avg_sq, step, options);
  } else {
    wide ? run_adam<double>(self, g, exp_avg, exp_avg_sq, step, options)
         : run_adam<float>(self, g, exp_avg, exp_avg_sq, step, options);
  }
  finish_in_place(op, grad, {{"self", &self}, {"exp_avg", &exp_avg}, {"exp_avg_sq", &exp_avg_sq}},
                  {{"lr", options.lr},
                   {"beta1", options.beta1},
                   {"beta2", options.beta2},
                   {"eps", options.eps},
                   {"weight_decay", options.weight_decay},
                   {"step", static_cast<double>(step)}});
}

}  // namespace nanhunt::engine
