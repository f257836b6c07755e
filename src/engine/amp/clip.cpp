// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"
#include "src/engine/ops/loops/strided.h"

namespace nanhunt::engine {
namespace {

// The norms as one vector, in the widest of their formats.
Tensor stack(const std::vector<Tensor>& norms) {
  DType dtype = norms[0].dtype();
  for (const Tensor& norm : norms) {
    if (norm.dtype() != dtype) dtype = norm.dtype() == DType::kF64 || dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  }
  // Copied where they are: reading each one would wait for a device as often as there are parameters.
  const Tensor out = Tensor::empty({static_cast<std::int64_t>(norms.size())}, dtype, norms[0].device());
  std::vector<OpArgument> inputs;
  for (const Tensor& norm : norms) {
    copy_elements(make_view(out, {}, {}, static_cast<std::int64_t>(inputs.size())), norm);
    inputs.push_back({"tensors", &norm, norm.version(), ArgRole::kRead});
  }
  if (!ops_observed()) return out;
  const OpArgument output{"out", &out, out.version(), ArgRole::kRead};
  notify_op({.op = "stack",
             .phase = current_phase(),
             .module = current_module(),
             .compute_dtype = dtype,
             .inputs = inputs,
             .outputs = std::span(&output, 1),
             .scalars = {}});
  return out;
}

}  // namespace

double clip_grad_norm_(const std::vector<NamedTensor>& parameters, double max_norm, bool error_if_nonfinite) {
  const ScopedPhase phase(Phase::kClip);
  const NoGradGuard no_grad;
  std::vector<Tensor> norms;
  for (const auto& [path, parameter] : parameters) {
    if (!parameter.grad().defined()) continue;
    const ScopedModule module(path);
    norms.push_back(norm(parameter.grad()));
  }
  if (norms.empty()) return 0;
  const Tensor total = norm(stack(norms));
  const double total_norm = total.item();
  if (error_if_nonfinite && !std::isfinite(total_norm)) {
    fail("clip_grad_norm_", "a finite total norm, or error_if_nonfinite = false", fmt::format("{}", total_norm));
  }
  // In this order, as eager does it: the coefficient multiplies even when it is 1.
  const Tensor coefficient = clamp(div(max_norm, add(total, 1e-6)), -std::numeric_limits<double>::infinity(), 1.0);
  for (const auto& [path, parameter] : parameters) {
    Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    const ScopedModule module(path);
    mul_(grad, coefficient);
  }
  ScalerEvent clipped;
  clipped.action = ScalerAction::kClip;
  clipped.total_norm = total_norm;
  clipped.max_norm = max_norm;
  notify_scaler(clipped);
  return total_norm;
}

}  // namespace nanhunt::engine
