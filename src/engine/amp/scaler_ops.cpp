// SPDX-License-Identifier: Apache-2.0
#include "src/engine/amp/scaler_ops.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine::amp {

bool check_and_unscale_(Tensor& grad, float inv_scale) {
  constexpr std::string_view kOp = "_amp_foreach_non_finite_check_and_unscale_";
  expect_floating(kOp, grad, "self");
  bool found_inf = false;
  map_into(
      grad, grad.dtype(),
      [&](auto x) {
        found_inf = found_inf || !std::isfinite(static_cast<float>(x));
        return inv_scale == 1 ? x : x * cast_like(x, inv_scale);
      },
      grad);
  finish_in_place(kOp, op_math(grad.dtype()), grad, {}, {{"inv_scale", inv_scale}});
  return found_inf;
}

void check_and_unscale_(std::span<NamedGradient> grads, float inv_scale, const Tensor& found) {
  constexpr std::string_view kOp = "_amp_foreach_non_finite_check_and_unscale_";
  for (const NamedGradient& named : grads) expect_floating(kOp, named.grad, "self");
  // Whoever looks at ops looks at each gradient before its own is told: the others must still hold what they held.
  const std::size_t at_a_time = ops_observed() ? 1 : grads.size();
  for (std::span<NamedGradient> left = grads; !left.empty(); left = left.subspan(at_a_time)) {
    std::vector<Tensor> tensors;
    for (const NamedGradient& named : left.first(at_a_time)) tensors.push_back(named.grad);
    device_unscale(tensors, inv_scale, found);
    for (NamedGradient& named : left.first(at_a_time)) {
      const ScopedModule module(named.path);
      finish_in_place(kOp, op_math(named.grad.dtype()), named.grad, {}, {{"inv_scale", inv_scale}});
    }
  }
}

std::optional<bool> check_and_unscale_(std::vector<NamedGradient> grads, float inv_scale) {
  std::optional<bool> found;
  std::vector<NamedGradient> on_device;
  for (NamedGradient& named : grads) {
    if (!named.grad.device().is_cpu()) {
      on_device.push_back(std::move(named));
      continue;
    }
    const ScopedModule module(named.path);
    const bool bad = check_and_unscale_(named.grad, inv_scale);
    found = found.value_or(false) || bad;
  }
  for (std::span<NamedGradient> left = on_device; !left.empty();) {
    const Device device = left.front().grad.device();
    const auto rest = std::stable_partition(left.begin(), left.end(), [&](const NamedGradient& named) {
      return named.grad.device() == device;
    });
    const Tensor found_there = Tensor::zeros({1}, DType::kI32, device);
    const auto many = static_cast<std::size_t>(rest - left.begin());
    check_and_unscale_(left.first(many), inv_scale, found_there);
    // one read for all of them: the scaler's own, with or without observers
    const bool bad = found_there.item() != 0;
    found = found.value_or(false) || bad;
    left = left.subspan(many);
  }
  return found;
}

std::vector<NamedGradient> gradients_to_unscale(Optimizer& optimizer) {
  std::vector<NamedGradient> out;
  const std::vector<NamedTensor> targets = optimizer.stepped();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& [path, parameter] = optimizer.parameters()[i];
    Tensor grad = parameter.grad();
    if (!grad.defined()) continue;
    Tensor target = targets[i].tensor;
    if (target.impl() != parameter.impl()) {
      const ScopedModule module(path);
      grad = to(grad, target.dtype());
      target.set_grad(grad);
    }
    out.push_back({path, grad});
  }
  return out;
}

void update_scale_(Tensor& scale, std::int32_t& growth_tracker, bool found_inf, double growth_factor,
                   double backoff_factor, std::int64_t growth_interval) {
  float& value = *scale.data<float>();
  if (found_inf) {
    value = static_cast<float>(static_cast<double>(value) * backoff_factor);
    growth_tracker = 0;
  } else if (const std::int32_t clean = growth_tracker + 1; clean == growth_interval) {
    const float grown = static_cast<float>(static_cast<double>(value) * growth_factor);
    if (std::isfinite(grown)) value = grown;
    growth_tracker = 0;
  } else {
    growth_tracker = clean;
  }
  finish_in_place("_amp_update_scale_", DType::kF64, scale, {},
                  {{"found_inf", found_inf ? 1.0 : 0.0},
                   {"scale_growth_factor", growth_factor},
                   {"scale_backoff_factor", backoff_factor},
                   {"growth_interval", static_cast<double>(growth_interval)}});
}

}  // namespace nanhunt::engine::amp
