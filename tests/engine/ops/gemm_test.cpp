// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;

const double kInf = std::numeric_limits<double>::infinity();

std::vector<double> reference(const Tensor& a, const Tensor& b) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < a.size(0); ++i) {
    for (std::int64_t j = 0; j < b.size(1); ++j) {
      double total = 0;
      for (std::int64_t k = 0; k < a.size(1); ++k) total += a.at(i * a.size(1) + k) * b.at(k * b.size(1) + j);
      out.push_back(total);
    }
  }
  return out;
}

// Small integers: every sum is exact in any order, in every format here.
Tensor integers(std::int64_t rows, std::int64_t columns, DType dtype) {
  std::vector<double> list;
  for (std::int64_t i = 0; i < rows * columns; ++i) list.push_back(static_cast<double>(i * 5 % 7 - 3));
  return Tensor::from_values(list, {rows, columns}, dtype);
}

class Gemm : public ::testing::TestWithParam<DType> {};

TEST_P(Gemm, gives_the_same_for_every_layout_and_shape) {
  const auto layouts = [](const Tensor& m) {
    const Tensor by_columns = t(t(m).clone());
    const Tensor wide = Tensor::zeros({m.size(0), m.size(1) + 3}, m.dtype());
    Tensor window = narrow(wide, 1, 2, m.size(1));
    window.copy_from(m);
    return std::vector<Tensor>{m, by_columns, window, strided_copy(m), t(t(window))};
  };
  for (const auto& [m, k, n] :
       {std::array<std::int64_t, 3>{3, 4, 5}, {1, 4, 1}, {5, 1, 5}, {1, 1, 1}, {2, 7, 1}, {33, 65, 17}}) {
    const Tensor a = integers(m, k, GetParam()), b = integers(k, n, GetParam());
    const std::vector<double> expected = reference(a, b);
    for (const Tensor& left : layouts(a)) {
      for (const Tensor& right : layouts(b)) EXPECT_EQ(matmul(left, right).to_vector(), expected) << m << k << n;
    }
    const Tensor bias = integers(1, n, GetParam());
    std::vector<double> with_bias = expected;
    for (std::size_t i = 0; i < with_bias.size(); ++i) with_bias[i] += bias.at(static_cast<std::int64_t>(i) % n);
    EXPECT_EQ(addmm(select(bias, 0, 0), a, b).to_vector(), with_bias);
    EXPECT_EQ(linear(a, t(b).clone(), select(bias, 0, 0)).to_vector(), with_bias);
  }
}

TEST_P(Gemm, of_nothing_is_zero_or_the_bias) {
  const Tensor a = Tensor::zeros({2, 0}, GetParam()), b = Tensor::zeros({0, 2}, GetParam());
  const Tensor bias = integers(1, 2, GetParam());
  EXPECT_THAT(matmul(a, b).to_vector(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(addmm(bias, a, b).to_vector(), ElementsAre(-3, 2, -3, 2));
  EXPECT_EQ(matmul(Tensor::zeros({0, 2}, GetParam()), a).numel(), 0);
}

TEST_P(Gemm, multiplies_infinity_by_zero_to_nan_and_keeps_nan) {
  // A BLAS that skips zeros would lose both.
  const Tensor bad = Tensor::from_values(std::vector<double>{kInf, 1, std::nan(""), 1}, {2, 2}, GetParam());
  const Tensor zero = Tensor::zeros({2, 2}, GetParam());
  for (const Tensor& out : {matmul(bad, zero), matmul(zero, t(bad))}) {
    for (double x : out.to_vector()) EXPECT_TRUE(std::isnan(x));
  }
  EXPECT_TRUE(std::isnan(addmm(select(bad, 0, 1), zero, zero).at(0)));
}

INSTANTIATE_TEST_SUITE_P(formats, Gemm, ::testing::Values(DType::kF16, DType::kBF16, DType::kF32, DType::kF64),
                         [](const auto& given) { return std::string(dtype_name(given.param)); });

TEST(Gemm, of_16_bit_accumulates_in_fp32_and_rounds_once) {
  // given: products that overflow fp16 and cancel, and a bias that brings the rest back into range
  const Tensor a = Tensor::from_values(std::vector<double>{60000, 60000}, {1, 2}, DType::kF16);
  const Tensor b = Tensor::from_values(std::vector<double>{2, -2}, {2, 1}, DType::kF16);
  EXPECT_EQ(matmul(a, b).item(), 0);
  const Tensor c = Tensor::from_values(std::vector<double>{1, 1}, {2, 1}, DType::kF16);
  EXPECT_EQ(matmul(a, c).item(), kInf);
  EXPECT_EQ(addmm(Tensor::full({1}, -60000, DType::kF16), a, c).item(), 60000);
}

}  // namespace
}  // namespace nanhunt::engine::testing
