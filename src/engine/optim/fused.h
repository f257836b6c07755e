// SPDX-License-Identifier: Apache-2.0
// Fused updates: one observed op per parameter, all arithmetic in op math (fp32; fp64 for fp64), and only
// parameter and state round to their dtype.
#pragma once

#include "nanhunt/engine/optimizer.h"

namespace nanhunt::engine {

// `buffer` is undefined without momentum. Observed as "_fused_sgd_".
void fused_sgd_(Tensor& self, const Tensor& grad, Tensor buffer, const OptimizerOptions& options);
// `step` counts from 1. Observed as "_fused_adam_" or
// "_fused_adamw_".
void fused_adam_(Tensor& self, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq, const std::int64_t& step,
                 const OptimizerOptions& options);

}  // namespace nanhunt::engine
