// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

double init_bound(std::int64_t in_features) {
  if (in_features < 1) fail("linear", "1 or more input features", std::to_string(in_features));
  return 1 / std::sqrt(static_cast<double>(in_features));
}

}  // namespace

Linear::Linear(std::int64_t in_features, std::int64_t out_features, RandomStream& random, DType dtype, bool with_bias)
    : weight_(register_parameter("weight", uniform_tensor({out_features, in_features}, -init_bound(in_features),
                                                          init_bound(in_features), dtype, random))),
      bias_(with_bias ? &register_parameter("bias", uniform_tensor({out_features}, -init_bound(in_features),
                                                                   init_bound(in_features), dtype, random))
                      : nullptr) {}

Tensor Linear::forward(const Tensor& input) { return linear(input, weight_, bias_ ? *bias_ : Tensor()); }

Tensor Relu::forward(const Tensor& input) { return relu(input); }

Tensor Tanh::forward(const Tensor& input) { return tanh(input); }

Embedding::Embedding(std::int64_t count, std::int64_t dim, RandomStream& random, DType dtype, double stddev)
    : weight_(register_parameter("weight", normal_tensor({count, dim}, 0, stddev, dtype, random))) {}

Tensor Embedding::forward(const Tensor& indices) { return embedding(weight_, indices); }

Tensor Sequential::forward(const Tensor& input) {
  Tensor value = input;
  for (Module* step : steps_) value = (*step)(value);
  return value;
}

}  // namespace nanhunt::engine
