// SPDX-License-Identifier: Apache-2.0
// The BLAS, row-major and with one thread: the order of its sums, and so the bits, must not depend on the cores of the
// machine. The first product sets that for the whole process. own_blas.cpp stands in for it in a build that needs nothing
// beside it (NANHUNT_SELF_CONTAINED).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/cpu/products.h"

namespace nanhunt::engine {

template <typename T>
using BlasOperand = kernels::ProductOperand<T>;

// c (m x n, dense) = a (m x k) @ b (k x n) + beta * c. Nothing inside (k = 0) adds nothing; beta is 0 or 1; sizes stay below 2^31.
void gemm(std::string_view op, const BlasOperand<float>& a, const BlasOperand<float>& b, float beta, float* c,
          std::int64_t m, std::int64_t n, std::int64_t k);
void gemm(std::string_view op, const BlasOperand<double>& a, const BlasOperand<double>& b, double beta, double* c,
          std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace nanhunt::engine
