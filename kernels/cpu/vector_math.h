// SPDX-License-Identifier: Apache-2.0
// Elementary functions over arrays of fp32: the same bits on every path and every machine, because each uses additions,
// products and quotients alone, each rounded. `out` may be one of the inputs; kernels/CONTRACTS.md has the errors.
#pragma once

#include <cstddef>

#include "kernels/cpu/simd.h"

namespace nanhunt::kernels {

void exp_f32(const float* x, float* out, std::size_t count);
void erf_f32(const float* x, float* out, std::size_t count);
// x * 0.5 * (1 + erf(x / sqrt 2)), and g times its derivative at x, each step rounded to fp32.
void gelu_f32(const float* x, float* out, std::size_t count);
void gelu_gradient_f32(const float* g, const float* x, float* out, std::size_t count);

// One path's loops. For tests and benchmarks; everything else calls the functions above.
struct VectorMathPath {
  void (*exp)(const float*, float*, std::size_t);
  void (*erf)(const float*, float*, std::size_t);
  void (*gelu)(const float*, float*, std::size_t);
  void (*gelu_gradient)(const float*, const float*, float*, std::size_t);
};
const VectorMathPath& vector_math_path(Simd simd);  // must be supported

}  // namespace nanhunt::kernels
