// SPDX-License-Identifier: Apache-2.0
// rms_norm over the last dimension, as the ops of which eager PyTorch makes it on the CPU: each is observed, and of 16
// bits all run in fp32 between two conversions.
#include <limits>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

Tensor rms_norm(const Tensor& input, const Tensor& weight, std::optional<double> eps) {
  if (amp::intercepts("rms_norm")) {
    return amp::run("rms_norm", [eps](const Tensor& x, const Tensor& w) { return rms_norm(x, w, eps); }, input, weight);
  }
  expect_floating("rms_norm", input, "input");
  if (input.dim() == 0) fail("rms_norm", "a last dimension", describe(input));
  if (weight.defined() && weight.sizes() != Shape{input.size(-1)}) {
    fail("rms_norm", "weight of " + describe(Shape{input.size(-1)}), describe(weight));
  }
  const DType wide = op_math(input.dtype());
  const double least = wide == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                           : static_cast<double>(std::numeric_limits<float>::epsilon());
  const Tensor x = to(input, wide);
  const Tensor normal = mul(x, rsqrt(add(mean(pow(x, 2), -1, true), eps.value_or(least))));
  return to(weight.defined() ? mul(normal, weight) : normal, input.dtype());
}

}  // namespace nanhunt::engine
