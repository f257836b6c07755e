// SPDX-License-Identifier: Apache-2.0
// In a build without a BLAS: kernels/cpu/products.h, with the same bits on every machine.
#include "kernels/cpu/products.h"
#include "src/engine/ops/loops/blas.h"

namespace nanhunt::engine {
namespace {

template <typename T>
void run(const BlasOperand<T>& a, const BlasOperand<T>& b, T beta, T* c, std::int64_t m, std::int64_t n,
         std::int64_t k) {
  if (m == 0 || n == 0 || k == 0) return;
  kernels::multiply_matrices(a, b, beta != T{0}, c, m, n, k);
}

}  // namespace

void gemm(std::string_view, const BlasOperand<float>& a, const BlasOperand<float>& b, float beta, float* c,
          std::int64_t m, std::int64_t n, std::int64_t k) {
  run(a, b, beta, c, m, n, k);
}

void gemm(std::string_view, const BlasOperand<double>& a, const BlasOperand<double>& b, double beta, double* c,
          std::int64_t m, std::int64_t n, std::int64_t k) {
  run(a, b, beta, c, m, n, k);
}

}  // namespace nanhunt::engine
