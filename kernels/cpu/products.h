// SPDX-License-Identifier: Apache-2.0
// Matrix products of fp32 and of fp64: the same bits on every path and every machine, because the order of a sum is fixed
// and products and sums are rounded apart; kernels/CONTRACTS.md has order and error.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd.h"

namespace nanhunt::kernels {

// A matrix that is read as it lies, or transposed; `lead` is the distance between its stored rows.
template <typename T>
struct ProductOperand {
  const T* data;
  std::int64_t lead;
  bool transposed = false;
};

// c (m x n, dense) = a (m x k) @ b (k x n), added to what c holds if `add`.
void multiply_matrices(const ProductOperand<float>& a, const ProductOperand<float>& b, bool add, float* c, std::int64_t m,
                       std::int64_t n, std::int64_t k);
void multiply_matrices(const ProductOperand<double>& a, const ProductOperand<double>& b, bool add, double* c,
                       std::int64_t m, std::int64_t n, std::int64_t k);

inline constexpr std::size_t kTileRows = 6;
inline constexpr std::size_t kMaxTileBytes = 128;  // of a row: two of the widest registers

// One path's loops: the sums of a tile of kTileRows x tile_bytes, over `count` columns of a and rows of b that are packed
// side by side. For multiply_matrices, tests and benchmarks.
struct ProductPath {
  std::size_t tile_bytes;
  void (*f32)(const float* a, const float* b, std::size_t count, float* sums);
  void (*f64)(const double* a, const double* b, std::size_t count, double* sums);
};
const ProductPath& product_path(Simd simd);  // must be supported
void multiply_matrices(const ProductPath& path, const ProductOperand<float>& a, const ProductOperand<float>& b, bool add,
                       float* c, std::int64_t m, std::int64_t n, std::int64_t k);
void multiply_matrices(const ProductPath& path, const ProductOperand<double>& a, const ProductOperand<double>& b,
                       bool add, double* c, std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace nanhunt::kernels
