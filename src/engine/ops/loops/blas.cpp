// SPDX-License-Identifier: Apache-2.0
#include "src/engine/ops/loops/blas.h"

#include <cblas.h>

#include <limits>
#include <string>

#include "src/engine/ops/op.h"

// OpenBLAS has it; another BLAS may not, and then manages its own threads.
extern "C" void openblas_set_num_threads(int count) __attribute__((weak));

namespace nanhunt::engine {
namespace {

void use_one_thread() {
  static const bool done = [] {
    if (&openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

int blas_int(std::string_view op, std::int64_t value) {
  if (value > std::numeric_limits<int>::max()) fail(op, "dimensions below 2^31", std::to_string(value));
  return static_cast<int>(value);
}

template <typename T, typename Blas>
void run(Blas blas, std::string_view op, const BlasOperand<T>& a, const BlasOperand<T>& b, T beta, T* c, std::int64_t m,
         std::int64_t n, std::int64_t k) {
  use_one_thread();
  const int rows = blas_int(op, m), columns = blas_int(op, n), inner = blas_int(op, k);
  const int a_lead = blas_int(op, a.lead), b_lead = blas_int(op, b.lead);
  if (m == 0 || n == 0 || k == 0) return;
  blas(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans, rows, columns,
       inner, T{1}, a.data, a_lead, b.data, b_lead, beta, c, columns);
}

}  // namespace

void gemm(std::string_view op, const BlasOperand<float>& a, const BlasOperand<float>& b, float beta, float* c,
          std::int64_t m, std::int64_t n, std::int64_t k) {
  run(cblas_sgemm, op, a, b, beta, c, m, n, k);
}

void gemm(std::string_view op, const BlasOperand<double>& a, const BlasOperand<double>& b, double beta, double* c,
          std::int64_t m, std::int64_t n, std::int64_t k) {
  run(cblas_dgemm, op, a, b, beta, c, m, n, k);
}

}  // namespace nanhunt::engine
