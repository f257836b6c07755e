// SPDX-License-Identifier: Apache-2.0
// The kernels of a loss scaler, as observed ops.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine::amp {

// Multiplies `grad` by `inv_scale` in place, each result rounded to its dtype, and tells whether an element was
// not finite before. An inv_scale of 1 stores the values unchanged. fp64 is tested as CUDA tests it, in fp32.
bool check_and_unscale_(Tensor& grad, float inv_scale);
// The same for all gradients on one device, by one launch and without waiting for it: `found` (one int32 there) becomes
// 1 where an element is not finite. Where ops are observed it is a launch for each, told before the next one, in the
// module of its path: what watches gradients finds each as it was before it is written over.
struct NamedGradient {
  std::string path;
  Tensor grad;
};
void check_and_unscale_(std::span<NamedGradient> grads, float inv_scale, const Tensor& found);

// The same for gradients wherever they are, one read for each device; nullopt: there are none.
std::optional<bool> check_and_unscale_(std::vector<NamedGradient> grads, float inv_scale);

// The gradients that the optimizer will use, still scaled. Those of parameters with a master are copied to its format
// and become the master's gradient.
std::vector<NamedGradient> gradients_to_unscale(Optimizer& optimizer);

// Backs off or grows the 0-dim fp32 `scale` and counts clean updates, in place, as torch's kernel does.
void update_scale_(Tensor& scale, std::int32_t& growth_tracker, bool found_inf, double growth_factor,
                   double backoff_factor, std::int64_t growth_interval);

}  // namespace nanhunt::engine::amp
