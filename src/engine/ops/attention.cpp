// SPDX-License-Identifier: Apache-2.0
// scaled_dot_product_attention, written as the ops it consists of: each of them is observed.
#include <cmath>

#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/random.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options) {
  constexpr std::string_view kOp = "scaled_dot_product_attention";
  if (amp::intercepts(kOp)) {
    const auto attend = [&options](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                   const Tensor& key_mask) {
      AttentionOptions cast = options;
      cast.mask = mask;
      cast.key_mask = key_mask;
      return scaled_dot_product_attention(q, k, v, cast);
    };
    return amp::run(kOp, attend, query, key, value, options.mask, options.key_mask);
  }
  expect_floating(kOp, query, "query");
  expect_floating(kOp, key, "key");
  if (query.dim() < 2 || key.dim() < 2) {
    fail(kOp, "query and key with 2 dimensions or more", describe(query) + " and " + describe(key));
  }
  if (options.dropout > 0 && options.random == nullptr) fail(kOp, "a random stream for dropout", "none");
  Tensor scores = mul(matmul(query, transpose(key, -2, -1)), 1 / std::sqrt(static_cast<double>(query.size(-1))));
  for (const Tensor& mask : {options.mask, options.key_mask}) {
    if (!mask.defined()) continue;
    scores = mask.dtype() == DType::kBool ? masked_fill(scores, mask, -HUGE_VAL) : add(scores, mask);
  }
  Tensor weights = softmax(scores, -1);
  if (options.dropout > 0) weights = dropout(weights, options.dropout, *options.random);
  return matmul(weights, value);
}

}  // namespace nanhunt::engine
