// SPDX-License-Identifier: Apache-2.0
// bmm, baddbmm, mv, addmv, addr, dot, and matmul and linear of tensors with other dimensions: they view their operands as
// the ones that mm, addmm, bmm, mv and dot take, as eager PyTorch does.
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/elementwise.h"
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

// A vector as a matrix of one column or one row.
Tensor as_column(const Tensor& vector) {
  return make_view(vector, {vector.size(0), 1}, {vector.strides()[0], 1}, vector.storage_offset());
}
Tensor as_row(const Tensor& vector) { return transposed(as_column(vector)); }

// A product without its dimensions of one element.
Tensor as_sizes(const Tensor& product, const Shape& sizes) {
  return make_view(product, sizes, contiguous_strides(sizes), product.storage_offset());
}

// What is added to a product.
void expect_addend(std::string_view op, const Tensor& self, DType dtype, const Shape& sizes) {
  expect_dtype(op, self, "self", dtype);
  if (broadcast(op, sizes, self.sizes()) == sizes) return;
  fail(op, "self that broadcasts to " + describe(sizes), describe(self));
}

}  // namespace

Tensor mv(const Tensor& self, const Tensor& vec) {
  if (amp::intercepts("mv")) return amp::run("mv", mv, self, vec);
  expect_floating("mv", self, "self");
  expect_floating("mv", vec, "vec");
  expect_dim("mv", self, "self", 2);
  expect_dim("mv", vec, "vec", 1);
  expect_dtype("mv", vec, "vec", self.dtype());
  if (self.size(1) != vec.size(0)) fail("mv", "vec of " + describe(Shape{self.size(1)}), describe(vec));
  return finish("mv", op_math(self.dtype()), as_sizes(multiply("mv", self, as_column(vec)), {self.size(0)}),
                {{"self", &self}, {"vec", &vec}}, {},
                {{"self", saved_for(vec, self)}, {"vec", saved_for(self, vec)}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &x = node.saved[1].tensor;
                  return {x.defined() ? multiply("mv_backward", as_column(g), as_row(x)) : Tensor(),
                          a.defined() ? as_sizes(multiply("mv_backward", transposed(a), as_column(g)), {a.size(1)})
                                      : Tensor()};
                });
}

Tensor addmv(const Tensor& self, const Tensor& mat, const Tensor& vec) {
  if (amp::intercepts("addmv")) return amp::run("addmv", addmv, self, mat, vec);
  for (const auto& [slot, operand] : {std::pair("mat", &mat), std::pair("vec", &vec)}) {
    expect_floating("addmv", *operand, slot);
    expect_dtype("addmv", *operand, slot, mat.dtype());
  }
  expect_dim("addmv", mat, "mat", 2);
  expect_dim("addmv", vec, "vec", 1);
  if (mat.size(1) != vec.size(0)) fail("addmv", "vec of " + describe(Shape{mat.size(1)}), describe(vec));
  expect_addend("addmv", self, mat.dtype(), {mat.size(0)});
  const Tensor column = self.dim() == 1 ? as_column(self) : self;
  return finish("addmv", op_math(mat.dtype()),
                as_sizes(multiply("addmv", mat, as_column(vec), column), {mat.size(0)}),
                {{"self", &self}, {"mat", &mat}, {"vec", &vec}}, {},
                {{"mat", saved_for(vec, mat)}, {"vec", saved_for(mat, vec)}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  constexpr std::string_view kOp = "addmv_backward";
                  const Tensor &a = node.saved[0].tensor, &x = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          x.defined() ? multiply(kOp, as_column(g), as_row(x)) : Tensor(),
                          a.defined() ? as_sizes(multiply(kOp, transposed(a), as_column(g)), {a.size(1)}) : Tensor()};
                });
}

Tensor addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2) {
  if (amp::intercepts("addr")) return amp::run("addr", addr, self, vec1, vec2);
  for (const auto& [slot, operand] : {std::pair("vec1", &vec1), std::pair("vec2", &vec2)}) {
    expect_floating("addr", *operand, slot);
    expect_dim("addr", *operand, slot, 1);
    expect_dtype("addr", *operand, slot, vec1.dtype());
  }
  expect_addend("addr", self, vec1.dtype(), {vec1.size(0), vec2.size(0)});
  return finish("addr", op_math(vec1.dtype()), multiply("addr", as_column(vec1), as_row(vec2), self),
                {{"self", &self}, {"vec1", &vec1}, {"vec2", &vec2}}, {},
                {{"vec1", saved_for(vec2, vec1)}, {"vec2", saved_for(vec1, vec2)}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  constexpr std::string_view kOp = "addr_backward";
                  const Tensor &x = node.saved[0].tensor, &y = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          y.defined() ? as_sizes(multiply(kOp, g, as_column(y)), {g.size(0)}) : Tensor(),
                          x.defined() ? as_sizes(multiply(kOp, transposed(g), as_column(x)), {g.size(1)}) : Tensor()};
                });
}

Tensor dot(const Tensor& self, const Tensor& tensor) {
  if (amp::intercepts("dot")) return amp::run("dot", dot, self, tensor);
  for (const auto& [slot, operand] : {std::pair("self", &self), std::pair("tensor", &tensor)}) {
    expect_floating("dot", *operand, slot);
    expect_dim("dot", *operand, slot, 1);
  }
  expect_dtype("dot", tensor, "tensor", self.dtype());
  if (self.sizes() != tensor.sizes()) fail("dot", "tensor of " + describe(self.sizes()), describe(tensor));
  return finish("dot", op_math(self.dtype()), as_sizes(multiply("dot", as_row(self), as_column(tensor)), {}),
                {{"self", &self}, {"tensor", &tensor}}, {},
                {{"self", saved_for(tensor, self)}, {"tensor", saved_for(self, tensor)}},
                [](const Tensor& g, const Node& node) -> std::vector<Tensor> {
                  const auto times = [&](const Edge& edge, const Tensor& other) {
                    if (!other.defined()) return Tensor();
                    return map_gradient(edge, other.sizes(), node.dtype, formulas::Multiply{}, g, other);
                  };
                  return {times(node.edges[0], node.saved[1].tensor), times(node.edges[1], node.saved[0].tensor)};
                });
}

Tensor bmm(const Tensor& self, const Tensor& mat2) {
  if (amp::intercepts("bmm")) return amp::run("bmm", bmm, self, mat2);
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

Tensor baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2) {
  if (amp::intercepts("baddbmm")) return amp::run("baddbmm", baddbmm, self, batch1, batch2);
  check_operands("baddbmm", 3, batch1, "batch1", batch2, "batch2");
  expect_addend("baddbmm", self, batch1.dtype(), {batch1.size(0), batch1.size(1), batch2.size(2)});
  return finish(
      "baddbmm", op_math(batch1.dtype()), multiply("baddbmm", batch1, batch2, self),
      {{"self", &self}, {"batch1", &batch1}, {"batch2", &batch2}}, {},
      {{"batch1", saved_for(batch2, batch1)}, {"batch2", saved_for(batch1, batch2)}},
      [left = is_by_columns(batch1), right = is_by_columns(batch2)](const Tensor& g,
                                                                    const Node& node) -> std::vector<Tensor> {
        constexpr std::string_view kOp = "baddbmm_backward";
        const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
        return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                b.defined() ? operand_gradient(kOp, node.edges[1], left, g, transposed(b)) : Tensor(),
                a.defined() ? operand_gradient(kOp, node.edges[2], right, transposed(a), g) : Tensor()};
      });
}

namespace {

// One of them has one dimension, which the result does not have.
Tensor matmul_of_vector(const Tensor& self, const Tensor& other) {
  if (self.dim() == 1 && other.dim() == 1) return dot(self, other);
  if (other.dim() == 1) {
    if (self.dim() == 2) return mv(self, other);
    expect_matrix("matmul", self, "self");
    const Tensor rows = as_rows(self);
    return reshape(mv(rows, other), {self.sizes().begin(), self.sizes().end() - 1});
  }
  expect_matrix("matmul", other, "other");
  const Tensor product = matmul(reshape(self, {1, self.size(0)}), other);
  Shape sizes = product.sizes();
  sizes.erase(sizes.end() - 2);
  return reshape(product, std::move(sizes));
}

}  // namespace

Tensor matmul(const Tensor& self, const Tensor& other) {
  if (amp::intercepts("matmul")) return amp::run("matmul", matmul, self, other);
  expect_defined("matmul", self, "self");
  expect_defined("matmul", other, "other");
  if (self.dim() == 1 || other.dim() == 1) return matmul_of_vector(self, other);
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
  if (amp::intercepts("linear")) return amp::run("linear", linear, input, weight, bias);
  expect_matrix("linear", input, "input");
  expect_floating("linear", weight, "weight");
  expect_dim("linear", weight, "weight", 2);
  const Tensor rows = input.dim() == 2 ? input : as_rows(input);
  const Tensor out = bias.defined() ? addmm(bias, rows, t(weight)) : mm(rows, t(weight));
  return input.dim() == 2 ? out : reshape(out, with_last(input.sizes(), weight.size(0)));
}

}  // namespace nanhunt::engine
