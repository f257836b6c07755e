// SPDX-License-Identifier: Apache-2.0
// Matrix products: every path against the order of sums that the contract states, bit for bit, and against double.
#include "kernels/cpu/products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/kernels/stats_support.h"

namespace nanhunt::kernels {
namespace {

struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 1, 1},    {6, 8, 4},     {7, 33, 5},   {13, 70, 256},
                            {5, 31, 257}, {2, 1100, 40}, {64, 9, 700}, {3, 2, 1031}};

// Numbers of both signs, spread over some magnitudes; always the same.
template <typename T>
std::vector<T> numbers(std::int64_t count, std::uint32_t state) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<T>(std::ldexp(static_cast<double>(state >> 8) / (1 << 23) - 1.0, static_cast<int>(state % 7) - 3));
  }
  return values;
}

// The contract: terms one after the other in runs of 256, the sums of the runs one after the other, each step rounded.
template <typename T>
T sum_in_order(const std::vector<T>& a, const std::vector<T>& b, const Sizes& s, std::int64_t i, std::int64_t j) {
  T sum = 0;
  for (std::int64_t begin = 0; begin < s.k; begin += 256) {
    T run = 0;
    for (std::int64_t p = begin; p < std::min(begin + 256, s.k); ++p) {
      const T term = a[static_cast<std::size_t>(i * s.k + p)] * b[static_cast<std::size_t>(p * s.n + j)];
      run += term;
    }
    sum = begin == 0 ? run : sum + run;
  }
  return sum;
}

template <typename T>
auto bits(const std::vector<T>& values) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  std::vector<Bits> out;
  for (T value : values) out.push_back(std::bit_cast<Bits>(value));
  return out;
}

template <typename T>
std::vector<T> transposed(const std::vector<T>& matrix, std::int64_t rows, std::int64_t columns, std::int64_t lead) {
  std::vector<T> out(static_cast<std::size_t>(columns * lead), T{99});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      out[static_cast<std::size_t>(j * lead + i)] = matrix[static_cast<std::size_t>(i * columns + j)];
    }
  }
  return out;
}

template <typename T>
void expect_the_order_of_sums() {
  for (const Sizes& s : kSizes) {
    const std::vector<T> a = numbers<T>(s.m * s.k, 1), b = numbers<T>(s.k * s.n, 2);
    std::vector<T> expected(static_cast<std::size_t>(s.m * s.n));
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; ++j) expected[static_cast<std::size_t>(i * s.n + j)] = sum_in_order(a, b, s, i, j);
    }
    const std::vector<T> turned_a = transposed(a, s.m, s.k, s.m + 3), turned_b = transposed(b, s.k, s.n, s.k + 1);
    for (const Simd simd : testing_support::supported_paths()) {
      for (const bool turn : {false, true}) {
        const ProductOperand<T> left = turn ? ProductOperand<T>{turned_a.data(), s.m + 3, true}
                                            : ProductOperand<T>{a.data(), s.k};
        const ProductOperand<T> right = turn ? ProductOperand<T>{turned_b.data(), s.k + 1, true}
                                             : ProductOperand<T>{b.data(), s.n};
        // given: what c holds before is not read unless it is added to
        std::vector<T> c(expected.size() + 1, std::numeric_limits<T>::quiet_NaN());
        c.back() = 7;
        multiply_matrices(product_path(simd), left, right, false, c.data(), s.m, s.n, s.k);
        EXPECT_EQ(c.back(), 7);
        c.pop_back();
        ASSERT_EQ(bits(c), bits(expected)) << simd_name(simd) << " " << s.m << " x " << s.k << " x " << s.n << turn;
      }
    }
  }
}

TEST(Products, every_path_adds_in_the_order_of_the_contract) {
  expect_the_order_of_sums<float>();
  expect_the_order_of_sums<double>();
}

TEST(Products, an_error_is_within_its_bound_and_what_is_there_is_added_to) {
  const Sizes s{9, 17, 3000};
  const std::vector<float> a = numbers<float>(s.m * s.k, 3), b = numbers<float>(s.k * s.n, 4);
  std::vector<float> c(static_cast<std::size_t>(s.m * s.n), 2.0F);
  multiply_matrices({a.data(), s.k}, {b.data(), s.n}, true, c.data(), s.m, s.n, s.k);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < s.n; ++j) {
      double sum = 2, size = 2;
      for (std::int64_t p = 0; p < s.k; ++p) {
        const double term = static_cast<double>(a[static_cast<std::size_t>(i * s.k + p)]) *
                            static_cast<double>(b[static_cast<std::size_t>(p * s.n + j)]);
        sum += term;
        size += std::fabs(term);
      }
      EXPECT_NEAR(static_cast<double>(c[static_cast<std::size_t>(i * s.n + j)]), sum, size * (257 + 12) * 0x1p-24);
    }
  }
}

TEST(Products, nothing_inside_gives_zeros_and_what_is_not_finite_stays_in_its_row) {
  std::vector<float> c(4, 5.0F);
  multiply_matrices(ProductOperand<float>{nullptr, 1}, ProductOperand<float>{nullptr, 2}, false, c.data(), 2, 2, 0);
  EXPECT_EQ(c, std::vector<float>(4, 0.0F));
  // An infinity in the last row and column: tiles are filled up with zeros, whose products with it must reach nothing.
  for (const Simd simd : testing_support::supported_paths()) {
    std::vector<float> a = numbers<float>(7 * 3, 5), b = numbers<float>(3 * 9, 6);
    a.back() = std::numeric_limits<float>::infinity();
    b.back() = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(7 * 9);
    multiply_matrices(product_path(simd), {a.data(), 3}, {b.data(), 9}, false, out.data(), 7, 9, 3);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isfinite(out[i]), i / 9 != 6 && i % 9 != 8) << i << " " << simd_name(simd);
    }
  }
}

}  // namespace
}  // namespace nanhunt::kernels
