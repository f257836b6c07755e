// SPDX-License-Identifier: Apache-2.0
// mm, addmm. BLAS does the work in fp32 or fp64; 16-bit operands are widened whole and the result is
// rounded once.
#include "src/engine/ops/loops/gemm.h"

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/loops/blas.h"
#include "src/engine/ops/loops/dense.h"
#include "src/engine/ops/device/device_calls.h"
#include "src/engine/ops/loops/elementwise.h"

namespace nanhunt::engine {
namespace {

// An operand as BLAS takes it.
template <typename T>
struct Matrix {
  BlasOperand<T> first{nullptr, 1};  // of the batch
  std::int64_t step = 0;             // from one of the batch to the next, in elements
  std::unique_ptr<Scratch<T>> widened;

  BlasOperand<T> at(std::int64_t index) const { return {first.data + index * step, first.lead, first.transposed}; }
};

std::int64_t stride(const Tensor& tensor, int from_end) {
  return tensor.strides()[tensor.strides().size() - static_cast<std::size_t>(from_end)];
}

std::int64_t batch_size(const Tensor& tensor) { return tensor.dim() == 3 ? tensor.size(0) : 1; }

// Without a copy when the dtype fits and one dimension has stride 1.
template <typename T>
Matrix<T> load_matrix(const Tensor& tensor) {
  const std::int64_t rows = tensor.size(-2), columns = tensor.size(-1);
  const std::int64_t down = stride(tensor, 2), across = stride(tensor, 1);
  const bool by_columns = is_by_columns(tensor);
  const std::int64_t lead = by_columns ? across : down;
  const bool strided = by_columns ? across >= std::max<std::int64_t>(rows, 1)
                                  : (across == 1 || columns == 1) && down >= std::max<std::int64_t>(columns, 1);
  if (tensor.dtype() == kDTypeOf<T> && strided) {
    return {{tensor.data<T>(), lead, by_columns}, tensor.dim() == 3 ? stride(tensor, 3) : 0, nullptr};
  }
  const Tensor source = by_columns ? transposed(tensor) : tensor;
  auto widened = std::make_unique<Scratch<T>>(tensor.numel());
  read_all(Reader<T>(source, source.sizes(), source.dtype()), 0, source.numel(), widened->data());
  const BlasOperand<T> first{widened->data(), std::max<std::int64_t>(source.size(-1), 1), by_columns};
  return {first, rows * columns, std::move(widened)};
}

template <typename T>
Tensor product(std::string_view op, const Tensor& a, const Tensor& b, const Tensor& bias) {
  Shape sizes = a.sizes();
  sizes.back() = b.size(-1);
  DenseOutput<T> out(sizes, a.dtype());
  const std::int64_t m = a.size(-2), n = b.size(-1), k = a.size(-1);
  if (bias.defined()) {
    read_all(Reader<T>(bias, sizes, a.dtype()), 0, numel_of(sizes), out.data());
  } else if (k == 0) {
    std::fill_n(out.data(), numel_of(sizes), T{0});
  }
  const Matrix<T> left = load_matrix<T>(a), right = load_matrix<T>(b);
  for (std::int64_t i = 0, count = batch_size(a); i < count; ++i) {
    gemm(op, left.at(i), right.at(i), bias.defined() ? T{1} : T{0}, out.data() + i * m * n, m, n, k);
  }
  return out.finish();
}

}  // namespace

bool is_by_columns(const Tensor& matrix) {
  return stride(matrix, 2) == 1 && matrix.size(-1) > 1 && stride(matrix, 1) >= matrix.size(-2);
}

Tensor transposed(const Tensor& matrix) { return dim_last(matrix, matrix.dim() - 2); }

Tensor multiply(std::string_view op, const Tensor& left, const Tensor& right, const Tensor& bias) {
  if (!on_cpu(left) || !on_cpu(right)) return device_multiply(op, left, right, bias);
  return left.dtype() == DType::kF64 ? product<double>(op, left, right, bias) : product<float>(op, left, right, bias);
}

Tensor operand_gradient(std::string_view op, const Edge& edge, bool by_columns, const Tensor& left,
                        const Tensor& right) {
  if (!edge.wanted()) return {};
  if (!by_columns) return multiply(op, left, right);
  return transposed(multiply(op, transposed(right), transposed(left)));
}

void check_operands(std::string_view op, int dims, const Tensor& left, std::string_view left_slot, const Tensor& right,
                    std::string_view right_slot) {
  expect_floating(op, left, left_slot);
  expect_floating(op, right, right_slot);
  expect_dim(op, left, left_slot, dims);
  expect_dim(op, right, right_slot, dims);
  if (left.dtype() != right.dtype()) fail(op, "operands of one dtype", describe(left) + " and " + describe(right));
  if (left.size(-1) != right.size(-2)) {
    fail(op, "as many columns on the left as rows on the right", describe(left) + " and " + describe(right));
  }
  if (batch_size(left) != batch_size(right)) {
    fail(op, "as many matrices on the left as on the right", describe(left) + " and " + describe(right));
  }
}

Tensor mm(const Tensor& self, const Tensor& mat2) {
  check_operands("mm", 2, self, "self", mat2, "mat2");
  return finish("mm", op_math(self.dtype()), multiply("mm", self, mat2), {{"self", &self}, {"mat2", &mat2}}, {},
                {{"self", saved_for(mat2, self)}, {"mat2", saved_for(self, mat2)}},
                [left = is_by_columns(self), right = is_by_columns(mat2)](const Tensor& g,
                                                                          const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {
                      b.defined() ? operand_gradient("mm_backward", node.edges[0], left, g, transposed(b)) : Tensor(),
                      a.defined() ? operand_gradient("mm_backward", node.edges[1], right, transposed(a), g) : Tensor()};
                });
}

Tensor addmm(const Tensor& bias, const Tensor& mat1, const Tensor& mat2) {
  if (amp::intercepts("addmm")) return amp::run("addmm", addmm, bias, mat1, mat2);
  check_operands("addmm", 2, mat1, "mat1", mat2, "mat2");
  expect_dtype("addmm", bias, "self", mat1.dtype());
  const Shape shape{mat1.size(0), mat2.size(1)};
  if (broadcast("addmm", shape, bias.sizes()) != shape) {
    fail("addmm", "self that broadcasts to " + describe(shape), describe(bias));
  }
  return finish("addmm", op_math(mat1.dtype()), multiply("addmm", mat1, mat2, bias),
                {{"self", &bias}, {"mat1", &mat1}, {"mat2", &mat2}}, {},
                {{"mat1", saved_for(mat2, mat1)}, {"mat2", saved_for(mat1, mat2)}},
                [left = is_by_columns(mat1), right = is_by_columns(mat2)](const Tensor& g,
                                                                          const Node& node) -> std::vector<Tensor> {
                  constexpr std::string_view kOp = "addmm_backward";
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(node.edges[0], g.sizes(), node.dtype, formulas::Identity{}, g),
                          b.defined() ? operand_gradient(kOp, node.edges[1], left, g, transposed(b)) : Tensor(),
                          a.defined() ? operand_gradient(kOp, node.edges[2], right, transposed(a), g) : Tensor()};
                });
}

}  // namespace nanhunt::engine
