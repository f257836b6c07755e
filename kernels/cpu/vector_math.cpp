// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/vector_math.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector_math_paths.h"

// 16 bytes: the registers that every x86-64 has, and other processors too.
#define NANHUNT_VECTOR_BYTES 16
#include "kernels/cpu/vector_math_loops.h"

namespace nanhunt::kernels {
namespace {

const VectorMathPath& active() {
  static const VectorMathPath& kActive = vector_math_path(active_simd());
  return kActive;
}

}  // namespace

const VectorMathPath& vector_math_path(Simd simd) {
  const VectorMathPath* path = nullptr;
  if (simd == Simd::kAvx2) path = vector_math_path_avx2();
  if (simd == Simd::kAvx512) path = vector_math_path_avx512();
  return path != nullptr ? *path : kPath;
}

void exp_f32(const float* x, float* out, std::size_t count) { active().exp(x, out, count); }
void erf_f32(const float* x, float* out, std::size_t count) { active().erf(x, out, count); }
void gelu_f32(const float* x, float* out, std::size_t count) { active().gelu(x, out, count); }
void gelu_gradient_f32(const float* g, const float* x, float* out, std::size_t count) {
  active().gelu_gradient(g, x, out, count);
}

}  // namespace nanhunt::kernels
