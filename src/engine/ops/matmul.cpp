// SPDX-License-Identifier: Apache-2.0
// bmm, and matmul and linear of tensors with batch dimensions: they view their operands as the 2-D or 3-D ones that
// mm, addmm and bmm take, as eager PyTorch does.
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/gemm.h"

namespace nanhunt::engine {
namespace {

Shape leading(const Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end() - 2}; }

// `sizes` followed by `rows` and `columns`.
Shape with_matrix(Shape sizes, std::int64_t rows, std::int64_t columns) {
  sizes.push_back(rows);
  sizes.push_back(columns);
  return sizes;
}

// (..., M, K) repeated over `batch`, as (product of batch, M, K).
Tensor as_batch(const Tensor& tensor, const Shape& batch) {
  const Shape sizes = with_matrix(batch, tensor.size(-2), tensor.size(-1));
  const Tensor repeated = tensor.sizes() == sizes ? tensor : expand(tensor, sizes);
  if (batch.size() == 1) return repeated;
  return reshape(repeated, {numel_of(batch), tensor.size(-2), tensor.size(-1)});
}

// (..., K) as a matrix of its rows.
Tensor as_rows(const Tensor& tensor) {
  return reshape(tensor, {numel_of({tensor.sizes().begin(), tensor.sizes().end() - 1}), tensor.size(-1)});
}

Shape with_last(Shape sizes, std::int64_t last) {
  sizes.back() = last;
  return sizes;
}

void expect_matrix(std::string_view op, const Tensor& tensor, std::string_view slot) {
  expect_floating(op, tensor, slot);
  if (tensor.dim() < 2) fail(op, std::string(slot) + " with 2 dimensions or more", describe(tensor));
}

}  // namespace

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  if (amp::intercepts()) return amp::run("bmm", bmm, self, mat2);
  check_operands("bmm", 3, self, "self", mat2, "mat2");
  return finish(
      "bmm", op_math(self.dtype()), multiply("bmm", self, mat2), {{"self", &self}, {"mat2", &mat2}}, {},
      {{"self", saved_for(mat2, self)}, {"mat2", saved_for(self, mat2)}},
      [left = is_by_columns(self), right = is_by_columns(mat2)](const Tensor& g,
                                                                const Node& node) -> std::vector<Tensor> {
        constexpr std::string_view kOp = "bmm_backward";
        const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
        return {b.defined() ? operand_gradient(kOp, node.edges[0], left, g, transposed(b)) : Tensor(),
                a.defined() ? operand_gradient(kOp, node.edges[1], right, transposed(a), g) : Tensor()};
      });
}

Tensor matmul(const Tensor& self, const Tensor& other) {
  if (amp::intercepts()) return amp::run("matmul", matmul, self, other);
  expect_matrix("matmul", self, "self");
  expect_matrix("matmul", other, "other");
  if (self.dim() == 2 && other.dim() == 2) return mm(self, other);
  if (self.size(-1) != other.size(-2)) {
    fail("matmul", "as many columns on the left as rows on the right", describe(self) + " and " + describe(other));
  }
  if (other.dim() == 2) return reshape(mm(as_rows(self), other), with_last(self.sizes(), other.size(1)));
  const Shape batch = broadcast("matmul", leading(self), leading(other));
  const Tensor product = bmm(as_batch(self, batch), as_batch(other, batch));
  return batch.size() == 1 ? product : reshape(product, with_matrix(batch, self.size(-2), other.size(-1)));
}

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  if (amp::intercepts()) return amp::run("linear", linear, input, weight, bias);
  expect_matrix("linear", input, "input");
  expect_floating("linear", weight, "weight");
  expect_dim("linear", weight, "weight", 2);
  const Tensor rows = input.dim() == 2 ? input : as_rows(input);
  const Tensor out = bias.defined() ? addmm(bias, rows, t(weight)) : mm(rows, t(weight));
  return input.dim() == 2 ? out : reshape(out, with_last(input.sizes(), weight.size(0)));
}

}  // namespace nanhunt::engine
