// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/products_paths.h"

// 16 bytes: the registers that every x86-64 has, and other processors too.
#define NANHUNT_VECTOR_BYTES 16
#include "kernels/cpu/products_loops.h"

namespace nanhunt::kernels {
namespace {

constexpr std::int64_t kInner = 256;  // terms that are added one after the other: part of the contract
constexpr std::int64_t kWide = 1024;  // columns of b that are packed at a time

const ProductPath& active() {
  static const ProductPath& kActive = product_path(active_simd());
  return kActive;
}

template <typename T>
T element(const ProductOperand<T>& matrix, std::int64_t row, std::int64_t column) {
  return matrix.transposed ? matrix.data[column * matrix.lead + row] : matrix.data[row * matrix.lead + column];
}

void tile(const ProductPath& path, const float* a, const float* b, std::size_t count, float* sums) {
  path.f32(a, b, count, sums);
}
void tile(const ProductPath& path, const double* a, const double* b, std::size_t count, double* sums) {
  path.f64(a, b, count, sums);
}

// `count` rows of b from `row`, `columns` of its columns from `column`: in panels as wide as a tile, the last one filled
// up with 0.
template <typename T>
void pack_right(const ProductOperand<T>& b, std::int64_t row, std::int64_t count, std::int64_t column,
                std::int64_t columns, std::int64_t width, T* to) {
  for (std::int64_t begin = 0; begin < columns; begin += width) {
    const std::int64_t there = std::min(width, columns - begin);
    for (std::int64_t p = 0; p < count; ++p, to += width) {
      for (std::int64_t j = 0; j < there; ++j) to[j] = element(b, row + p, column + begin + j);
      std::fill(to + there, to + width, T{0});
    }
  }
}

template <typename T>
void pack_left(const ProductOperand<T>& a, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t count,
               T* to) {
  for (std::int64_t p = 0; p < count; ++p, to += kTileRows) {
    for (std::int64_t i = 0; i < rows; ++i) to[i] = element(a, row + i, column + p);
    std::fill(to + rows, to + kTileRows, T{0});
  }
}

template <typename T>
void multiply(const ProductPath& path, const ProductOperand<T>& a, const ProductOperand<T>& b, bool add, T* c,
              std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto width = static_cast<std::int64_t>(path.tile_bytes / sizeof(T));
  constexpr auto kRows = static_cast<std::int64_t>(kTileRows);
  if (k == 0 && !add) std::fill_n(c, m * n, T{0});
  const std::int64_t inner = std::min(k, kInner), wide = std::min((n + width - 1) / width * width, kWide);
  std::vector<T> right(static_cast<std::size_t>(inner * wide)), left(static_cast<std::size_t>(inner * kRows));
  T sums[kTileRows * kMaxTileBytes / sizeof(T)];
  for (std::int64_t column = 0; column < n; column += wide) {
    const std::int64_t columns = std::min(wide, n - column);
    for (std::int64_t p = 0; p < k; p += kInner) {
      const std::int64_t count = std::min(kInner, k - p);
      pack_right(b, p, count, column, columns, width, right.data());
      const bool adds = add || p > 0;
      for (std::int64_t row = 0; row < m; row += kRows) {
        const std::int64_t rows = std::min(kRows, m - row);
        pack_left(a, row, rows, p, count, left.data());
        for (std::int64_t begin = 0; begin < columns; begin += width) {
          tile(path, left.data(), right.data() + begin * count, static_cast<std::size_t>(count), sums);
          const std::int64_t there = std::min(width, columns - begin);
          for (std::int64_t i = 0; i < rows; ++i) {
            T* to = c + (row + i) * n + column + begin;
            const T* from = sums + i * width;
            for (std::int64_t j = 0; j < there; ++j) to[j] = adds ? to[j] + from[j] : from[j];
          }
        }
      }
    }
  }
}

}  // namespace

const ProductPath& product_path(Simd simd) {
  const ProductPath* path = nullptr;
  if (simd == Simd::kAvx2) path = product_path_avx2();
  if (simd == Simd::kAvx512) path = product_path_avx512();
  return path != nullptr ? *path : kPath;
}

void multiply_matrices(const ProductPath& path, const ProductOperand<float>& a, const ProductOperand<float>& b, bool add,
                       float* c, std::int64_t m, std::int64_t n, std::int64_t k) {
  multiply(path, a, b, add, c, m, n, k);
}

void multiply_matrices(const ProductPath& path, const ProductOperand<double>& a, const ProductOperand<double>& b,
                       bool add, double* c, std::int64_t m, std::int64_t n, std::int64_t k) {
  multiply(path, a, b, add, c, m, n, k);
}

void multiply_matrices(const ProductOperand<float>& a, const ProductOperand<float>& b, bool add, float* c, std::int64_t m,
                       std::int64_t n, std::int64_t k) {
  multiply(active(), a, b, add, c, m, n, k);
}

void multiply_matrices(const ProductOperand<double>& a, const ProductOperand<double>& b, bool add, double* c,
                       std::int64_t m, std::int64_t n, std::int64_t k) {
  multiply(active(), a, b, add, c, m, n, k);
}

}  // namespace nanhunt::kernels
