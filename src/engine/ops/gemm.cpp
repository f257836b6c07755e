// SPDX-License-Identifier: Apache-2.0
// mm, addmm, linear. BLAS does the work in fp32 or fp64; 16-bit operands are widened whole and the result is
// rounded once. One BLAS thread: the sum order, and so the bits, must not depend on the machine's cores.
#include <cblas.h>

#include <limits>

#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/elementwise.h"

// OpenBLAS has it; another BLAS may not, and then manages its own threads.
extern "C" void openblas_set_num_threads(int count) __attribute__((weak));

namespace nanhunt::engine {
namespace {

void use_one_blas_thread() {
  static const bool done = [] {
    if (&openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

// A 2-D operand as BLAS takes it.
template <typename T>
struct Matrix {
  const T* data = nullptr;
  CBLAS_TRANSPOSE trans = CblasNoTrans;
  int lead = 1;
  std::vector<T> widened;
};

int blas_int(std::string_view op, std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) fail(op, "dimensions below 2^31", std::to_string(value));
  return static_cast<int>(value);
}

bool is_by_columns(const Tensor& tensor) {
  return tensor.strides()[0] == 1 && tensor.size(1) > 1 && tensor.strides()[1] >= tensor.size(0);
}

// Without a copy when the dtype fits and one dimension has stride 1.
template <typename T>
Matrix<T> load_matrix(std::string_view op, const Tensor& tensor) {
  Matrix<T> m;
  const std::int64_t rows = tensor.size(0), columns = tensor.size(1);
  const std::int64_t down = tensor.strides()[0], across = tensor.strides()[1];
  const bool by_columns = is_by_columns(tensor);
  const bool same = tensor.dtype() == (std::is_same_v<T, double> ? DType::kF64 : DType::kF32);
  const std::int64_t lead = by_columns ? across : down;
  const bool strided = by_columns ? across >= std::max<std::int64_t>(rows, 1)
                                  : (across == 1 || columns == 1) && down >= std::max<std::int64_t>(columns, 1);
  m.trans = by_columns ? CblasTrans : CblasNoTrans;
  if (same && strided) {
    m.data = tensor.data<T>();
    m.lead = blas_int(op, lead);
    return m;
  }
  const Tensor source = by_columns ? dim_last(tensor, 0) : tensor;
  m.widened.resize(static_cast<std::size_t>(tensor.numel()));
  read_all(Reader<T>(source, source.sizes(), source.dtype()), 0, source.numel(), m.widened.data());
  m.data = m.widened.data();
  m.lead = blas_int(op, std::max<std::int64_t>(source.size(1), 1));
  return m;
}

void gemm(const Matrix<float>& a, const Matrix<float>& b, float beta, float* c, int m, int n, int k) {
  cblas_sgemm(CblasRowMajor, a.trans, b.trans, m, n, k, 1.0F, a.data, a.lead, b.data, b.lead, beta, c, n);
}
void gemm(const Matrix<double>& a, const Matrix<double>& b, double beta, double* c, int m, int n, int k) {
  cblas_dgemm(CblasRowMajor, a.trans, b.trans, m, n, k, 1.0, a.data, a.lead, b.data, b.lead, beta, c, n);
}

// a @ b, plus `bias` (broadcast to the result) when it is defined; stored as `dtype`.
template <typename T>
Tensor product(std::string_view op, const Tensor& a, const Tensor& b, const Tensor& bias, DType dtype) {
  use_one_blas_thread();
  Tensor out = Tensor::zeros({a.size(0), b.size(1)}, dtype);
  const Writer<T> writer(out);
  std::vector<T> scratch;
  T* c = writer.target(0, nullptr);
  if (c == nullptr) {
    scratch.resize(static_cast<std::size_t>(out.numel()));
    c = scratch.data();
  }
  if (bias.defined()) read_all(Reader<T>(bias, out.sizes(), dtype), 0, out.numel(), c);
  const int m = blas_int(op, a.size(0)), n = blas_int(op, b.size(1)), k = blas_int(op, a.size(1));
  if (m > 0 && n > 0 && k > 0) {
    gemm(load_matrix<T>(op, a), load_matrix<T>(op, b), bias.defined() ? T{1} : T{0}, c, m, n, k);
  }
  if (!scratch.empty()) write_all(writer, 0, out.numel(), scratch.data());
  return out;
}

Tensor multiply(std::string_view op, const Tensor& a, const Tensor& b, const Tensor& bias = {}) {
  return a.dtype() == DType::kF64 ? product<double>(op, a, b, bias, DType::kF64)
                                  : product<float>(op, a, b, bias, a.dtype());
}

Tensor transposed(const Tensor& tensor) { return dim_last(tensor, 0); }

void check_operands(std::string_view op, const Tensor& a, std::string_view a_slot, const Tensor& b,
                    std::string_view b_slot) {
  expect_floating(op, a, a_slot);
  expect_floating(op, b, b_slot);
  expect_dim(op, a, a_slot, 2);
  expect_dim(op, b, b_slot, 2);
  if (a.dtype() != b.dtype()) fail(op, "operands of one dtype", describe(a) + " and " + describe(b));
  if (a.size(1) != b.size(0)) {
    fail(op, "as many columns on the left as rows on the right", describe(a) + " and " + describe(b));
  }
}

// The gradient left @ right of one operand, laid out like that operand: a transposed weight's gradient comes
// out dense after the transpose's own backward.
Tensor operand_gradient(const Edge& edge, bool by_columns, const Tensor& left, const Tensor& right) {
  if (!edge.wanted()) return {};
  if (!by_columns) return multiply("mm_backward", left, right);
  return transposed(multiply("mm_backward", transposed(right), transposed(left)));
}

}  // namespace

Tensor matmul(const Tensor& self, const Tensor& other) {
  if (amp::intercepts()) return amp::run("matmul", matmul, self, other);
  check_operands("mm", self, "self", other, "mat2");
  return finish("mm", op_math(self.dtype()), multiply("mm", self, other), {{"self", &self}, {"mat2", &other}}, {},
                {{"self", saved_for(other, self)}, {"mat2", saved_for(self, other)}},
                [left = is_by_columns(self), right = is_by_columns(other)](const Tensor& g,
                                                                           const Node& node) -> std::vector<Tensor> {
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {b.defined() ? operand_gradient(node.edges[0], left, g, transposed(b)) : Tensor(),
                          a.defined() ? operand_gradient(node.edges[1], right, transposed(a), g) : Tensor()};
                });
}

Tensor addmm(const Tensor& bias, const Tensor& mat1, const Tensor& mat2) {
  if (amp::intercepts()) return amp::run("addmm", addmm, bias, mat1, mat2);
  check_operands("addmm", mat1, "mat1", mat2, "mat2");
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
                  const Tensor &a = node.saved[0].tensor, &b = node.saved[1].tensor;
                  return {map_gradient(
                              node.edges[0], g.sizes(), node.dtype, [](auto x) { return x; }, g),
                          b.defined() ? operand_gradient(node.edges[1], left, g, transposed(b)) : Tensor(),
                          a.defined() ? operand_gradient(node.edges[2], right, transposed(a), g) : Tensor()};
                });
}

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  if (amp::intercepts()) return amp::run("linear", linear, input, weight, bias);
  expect_floating("linear", weight, "weight");
  expect_dim("linear", weight, "weight", 2);
  return bias.defined() ? addmm(bias, input, t(weight)) : matmul(input, t(weight));
}

}  // namespace nanhunt::engine
