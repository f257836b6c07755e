// SPDX-License-Identifier: Apache-2.0
// NaN, infinities and zeros at the edges of each op and of its backward: what eager PyTorch gives.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::NanSensitiveDoubleEq;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor values(std::vector<double> list, DType dtype = DType::kF32) {
  const auto n = static_cast<std::int64_t>(list.size());
  return Tensor::from_values(list, {n}, dtype);
}

// Equal, NaN to NaN.
::testing::Matcher<std::vector<double>> are(const std::vector<double>& expected) {
  std::vector<::testing::Matcher<double>> each;
  for (double x : expected) each.push_back(NanSensitiveDoubleEq(x));
  return ::testing::ElementsAreArray(each);
}

// The gradient of f at x, for output gradients g.
template <typename F>
std::vector<double> gradient(F f, const std::vector<double>& x, const std::vector<double>& g,
                             DType dtype = DType::kF32) {
  Tensor input = values(x, dtype).set_requires_grad(true);
  // sum(f * g) sends exactly g into f's backward.
  sum(mul(f(input), values(g, dtype))).backward();
  return input.grad().to_vector();
}

TEST(EdgeValues, relu_and_clamp_pass_nan_on) {
  const Tensor x = values({kNan, kInf, -kInf, -1});
  EXPECT_THAT(relu(x).to_vector(), are({kNan, kInf, 0, 0}));
  EXPECT_THAT(clamp(x, -2, 2).to_vector(), are({kNan, 2, -2, -1}));
  EXPECT_THAT(clamp(x, 3, 1).to_vector(), are({kNan, 1, 1, 1}));  // the upper bound wins, as in eager
  EXPECT_THAT(clamp(x, kNan, 1).to_vector(), are({kNan, kNan, kNan, kNan}));
}

TEST(EdgeValues, gradients_of_relu_clamp_and_abs_at_nan_and_kinks) {
  EXPECT_THAT(gradient([](const Tensor& x) { return relu(x); }, {kNan, 0, -1, 1}, {5, 5, 5, 5}), are({5, 0, 0, 5}));
  EXPECT_THAT(gradient([](const Tensor& x) { return clamp(x, -1, 1); }, {kNan, 1, 2, -kInf}, {5, 5, 5, 5}),
              are({0, 5, 0, 0}));
  EXPECT_THAT(gradient([](const Tensor& x) { return abs(x); }, {kNan, 0, -2, kInf}, {5, 5, 5, 5}), are({0, 0, -5, 5}));
  // A masked gradient is 0 even when what came in is not finite.
  EXPECT_THAT(gradient([](const Tensor& x) { return relu(x); }, {-1, -1}, {kInf, kNan}), are({0, 0}));
}

TEST(EdgeValues, singular_points_of_backward) {
  EXPECT_THAT(gradient([](const Tensor& x) { return sqrt(x); }, {0, 0, 4, -1}, {1, 0, 1, 1}),
              are({kInf, kNan, 0.25, kNan}));
  EXPECT_THAT(gradient([](const Tensor& x) { return rsqrt(x); }, {0, 0, 4}, {1, 0, 1}), are({-kInf, kNan, -0.0625}));
  EXPECT_THAT(gradient([](const Tensor& x) { return reciprocal(x); }, {0, 0, 4}, {1, 0, 1}),
              are({-kInf, kNan, -0.0625}));
  EXPECT_THAT(gradient([](const Tensor& x) { return log(x); }, {0, 0, 2, -2}, {1, 0, 1, 1}),
              are({kInf, kNan, 0.5, -0.5}));
  EXPECT_THAT(gradient([](const Tensor& x) { return pow(x, 0.5); }, {0, 0, 4, -1}, {1, 0, 1, 1}),
              are({kInf, kNan, 0.25, kNan}));
  EXPECT_THAT(gradient([](const Tensor& x) { return pow(x, 0.25); }, {-1}, {1}), are({kNan}));
  EXPECT_THAT(gradient([](const Tensor& x) { return pow(x, 0); }, {kNan, 0, kInf}, {1, kInf, kNan}), are({0, 0, 0}));
  EXPECT_THAT(gradient(
                  [](const Tensor& x) {
                    return mul(x, values({0, kInf}));
                  },
                  {1, 1}, {kInf, 0}),
              are({kNan, kNan}));
}

TEST(EdgeValues, sqrt_backward_at_the_smallest_fp16_number_is_2048) {
  EXPECT_THAT(gradient([](const Tensor& x) { return sqrt(x); }, {0x1p-24, 0}, {1, 1}, DType::kF16), are({2048, kInf}));
}

TEST(EdgeValues, division_by_zero_and_by_numbers_whose_square_underflows) {
  Tensor a = values({1, 0, 1e-30}).set_requires_grad(true), b = values({0, 0, 1e-30}).set_requires_grad(true);
  const Tensor out = div(a, b);
  EXPECT_THAT(out.to_vector(), are({kInf, kNan, 1}));
  sum(out).backward();
  EXPECT_THAT(a.grad().to_vector(), are({kInf, kInf, static_cast<double>(1 / 1e-30F)}));
  // Divided twice: b * b would be 0 here, and the gradient -Inf.
  EXPECT_THAT(b.grad().to_vector(), are({-kInf, kNan, static_cast<double>(-1 / 1e-30F)}));
}

TEST(EdgeValues, where_gives_zero_to_the_untaken_branch_and_its_backward_may_make_nan_of_it) {
  // given: sqrt at 0 in the branch that is not taken
  Tensor x = values({0, 4}).set_requires_grad(true);
  const Tensor taken = gt(x, 1.0);
  // when
  sum(where(taken, sqrt(x), Tensor::zeros({2}, DType::kF32))).backward();
  // then: 0 / (2 * 0)
  EXPECT_THAT(x.grad().to_vector(), are({kNan, 0.25}));
  // and: the mask alone stops NaN
  Tensor y = values({1, 1}).set_requires_grad(true);
  sum(mul(where(gt(values({0, 2}), 1.0), y, neg(y)), values({kNan, 1}))).backward();
  EXPECT_THAT(y.grad().to_vector(), are({kNan, 1}));
}

TEST(EdgeValues, masked_fill_hides_nan_forward_and_stops_the_gradient) {
  EXPECT_THAT(gradient(
                  [](const Tensor& x) {
                    return masked_fill(x, gt(values({2, 0}), 1.0), -1e9);
                  },
                  {kNan, 1}, {7, 7}),
              are({0, 7}));
  // A mask constant of -1e9 is -Inf in fp16.
  const Tensor filled = masked_fill(values({1, 2}, DType::kF16), gt(values({2, 0}), 1.0), -1e9);
  EXPECT_THAT(filled.to_vector(), are({-kInf, 2}));
}

TEST(EdgeValues, a_norm_of_zero_has_gradient_zero_and_a_hand_written_one_nan) {
  EXPECT_THAT(gradient([](const Tensor& x) { return norm(x, 0, true); }, {0, 0}, {1}), are({0, 0}));
  EXPECT_THAT(gradient([](const Tensor& x) { return sqrt(sum(mul(x, x), 0, true)); }, {0, 0}, {1}), are({kNan, kNan}));
  EXPECT_THAT(gradient([](const Tensor& x) { return norm(x, 0, true); }, {kInf, 1}, {1}), are({kNan, 0}));
}

TEST(EdgeValues, amax_passes_nan_on_wherever_it_stands) {
  for (const std::vector<double>& list : {std::vector<double>{kNan, 1, 2}, {1, kNan, 2}, {1, 2, kNan}}) {
    EXPECT_TRUE(std::isnan(amax(values(list), 0).item()));
  }
  EXPECT_EQ(amax(values({-kInf, -kInf}), 0).item(), -kInf);
  EXPECT_EQ(amax(values({1, kInf, 2}), 0).item(), kInf);
}

TEST(EdgeValues, softmax_of_a_row_of_minus_infinity_is_nan_and_of_a_mask_constant_uniform) {
  const Tensor rows = Tensor::from_values(std::vector<double>{-kInf, -kInf, -1e4, -1e4, 0, -kInf, kInf, 0, kNan, 0},
                                          {5, 2}, DType::kF16);
  EXPECT_THAT(softmax(rows, 1).to_vector(), are({kNan, kNan, 0.5, 0.5, 1, 0, kNan, kNan, kNan, kNan}));
  const std::vector<double> logs = log_softmax(rows, 1).to_vector();
  EXPECT_TRUE(std::isnan(logs[0]));
  EXPECT_EQ(logs[5], -kInf);
}

TEST(EdgeValues, softmax_does_not_overflow_where_exp_would) {
  EXPECT_THAT(softmax(values({65504, 65504}, DType::kF16), 0).to_vector(), are({0.5, 0.5}));
  EXPECT_EQ(softmax(values({-200, 0}), 0).at(1), 1);
}

TEST(EdgeValues, nll_loss_with_every_target_ignored_is_nan_and_its_gradient_zero) {
  Tensor x = Tensor::zeros({2, 3}, DType::kF32).set_requires_grad(true);
  const Tensor target = Tensor::from_indices(std::vector<std::int64_t>{-100, -100}, {2});
  const Tensor loss = nll_loss(x, target);
  EXPECT_TRUE(std::isnan(loss.item()));
  loss.backward();
  EXPECT_THAT(x.grad().to_vector(), are({0, 0, 0, 0, 0, 0}));
}

TEST(EdgeValues, nll_loss_ignores_the_index_it_is_told_to) {
  const Tensor x = Tensor::from_values(std::vector<double>{-1, -2, -3, -4}, {2, 2}, DType::kF32);
  const Tensor target = Tensor::from_indices(std::vector<std::int64_t>{1, 0}, {2});
  EXPECT_EQ(nll_loss(x, target).item(), 2.5);
  EXPECT_EQ(nll_loss(x, target, 1).item(), 3);
}

TEST(EdgeValues, reductions_of_nothing) {
  const Tensor none = Tensor::zeros({0}, DType::kF32), empty_rows = Tensor::zeros({2, 0}, DType::kF32);
  EXPECT_EQ(sum(none).item(), 0);
  EXPECT_TRUE(std::isnan(mean(none).item()));
  EXPECT_EQ(norm(none).item(), 0);
  EXPECT_THAT(sum(empty_rows, 1).to_vector(), ElementsAre(0, 0));
  EXPECT_EQ(sum(empty_rows, 0).numel(), 0);
  EXPECT_EQ(amax(empty_rows, 0).numel(), 0);
  EXPECT_EQ(softmax(empty_rows, 1).numel(), 0);
}

TEST(EdgeValues, a_sum_of_opposite_infinities_is_nan_and_overflow_shows_where_it_is_stored) {
  EXPECT_TRUE(std::isnan(sum(values({kInf, -kInf, 1})).item()));
  // 65504 twice: fp32 holds the sum, fp16 does not; the mean is stored only after the division.
  const Tensor large = values({65504, 65504}, DType::kF16);
  EXPECT_EQ(sum(large).item(), kInf);
  EXPECT_EQ(mean(large).item(), 65504);
  // Squares of fp32 numbers overflow in the accumulator already.
  EXPECT_EQ(norm(values({1e30, 1})).item(), kInf);
}

TEST(EdgeValues, comparisons_with_nan_are_false_and_numbers_are_rounded_first) {
  EXPECT_THAT(gt(values({kNan, kInf, 0}), 0.0).to_vector(), ElementsAre(0, 1, 0));
  EXPECT_THAT(eq(values({kNan, -0.0, 1}), 0.0).to_vector(), ElementsAre(0, 1, 0));
  EXPECT_THAT(eq(values({0.1}, DType::kF16), 0.1).to_vector(), ElementsAre(1));
  EXPECT_THAT(gt(values({0}, DType::kF16), -1e-8).to_vector(), ElementsAre(0));  // -1e-8 is -0 in fp16
  const Tensor labels = Tensor::from_indices(std::vector<std::int64_t>{3, -1}, {2});
  EXPECT_THAT(eq(labels, 3.0).to_vector(), ElementsAre(1, 0));
}

TEST(EdgeValues, powers_follow_the_roots_where_eager_does) {
  EXPECT_THAT(pow(values({-kInf, -1, 0}), 0.5).to_vector(), are({kNan, kNan, 0}));
  EXPECT_THAT(pow(values({0, -0.0, 2}), -1).to_vector(), are({kInf, -kInf, 0.5}));
  EXPECT_THAT(pow(values({kNan, kInf}), 0).to_vector(), are({1, 1}));
  EXPECT_THAT(pow(values({256, 1e-4}, DType::kF16), 2).to_vector(), are({kInf, 0}));
}

TEST(EdgeValues, subnormals_are_kept) {
  const double tiny = 1e-40F;
  EXPECT_EQ(mul(values({tiny}), 1.0).item(), tiny);
  EXPECT_EQ(matmul(reshape(values({tiny}), {1, 1}), reshape(values({1}), {1, 1})).item(), tiny);
}

TEST(EdgeValues, embedding_sums_the_gradients_of_repeated_rows_in_fp32) {
  // given: 3000 uses of one row, which 16-bit sums would stall at 2048
  Tensor table = Tensor::zeros({2, 1}, DType::kF16).set_requires_grad(true);
  const Tensor rows = Tensor::from_indices(std::vector<std::int64_t>(3000, 1), {3000});
  sum(embedding(table, rows)).backward();
  EXPECT_THAT(table.grad().to_vector(), ElementsAre(0, 3000));
}

}  // namespace
}  // namespace nanhunt::engine::testing
