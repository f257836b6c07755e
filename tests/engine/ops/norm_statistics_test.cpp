// SPDX-License-Identifier: Apache-2.0
// Norms whose statistics are in the input's format: every way in which fp16 loses them, the bits of plain loops that
// round each result, and what observers are told. With statistics in fp32 nothing of that happens.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "nanhunt/engine/hooks.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

constexpr auto kInput = NormStatistics::kInput, kOpMath = NormStatistics::kOpMath;

// A batch norm of one channel: what it made of `values`, and the statistics that it found (momentum 1 keeps no others).
struct Normed {
  std::vector<double> out;
  double mean = 0, variance = 0;  // unbiased
};
Normed norm_of(const std::vector<double>& values, DType dtype, NormStatistics statistics, double eps = 1e-5) {
  Tensor mean = Tensor::zeros({1}, dtype), var = Tensor::full({1}, 1, dtype);
  const Tensor x = Tensor::from_values(values, {static_cast<std::int64_t>(values.size()), 1}, dtype);
  const Tensor out = batch_norm(x, Tensor::full({1}, 1, dtype), Tensor::zeros({1}, dtype), mean, var, true, 1, eps,
                                statistics);
  return {out.to_vector(), mean.item(), var.item()};
}

std::vector<double> alternating(double size, std::size_t count) {
  std::vector<double> values(count, size);
  for (std::size_t i = 1; i < count; i += 2) values[i] = -size;
  return values;
}

TEST(StatisticsInFp16, stall_once_a_sum_is_2048_times_what_is_added) {
  const std::vector<double> ones(4096, 1);
  EXPECT_EQ(norm_of(ones, DType::kF16, kInput).mean, 0.5);  // 2048 / 4096
  EXPECT_EQ(norm_of(ones, DType::kF16, kOpMath).mean, 1);
  EXPECT_EQ(norm_of(ones, DType::kBF16, kInput).mean, 256.0 / 4096);
  EXPECT_EQ(norm_of(ones, DType::kBF16, kOpMath).mean, 1);
}

TEST(StatisticsInFp16, overflow_in_a_sum_and_make_the_channel_nan) {
  std::vector<double> large(64, 2000);
  large[0] = 1000;
  const Normed narrow = norm_of(large, DType::kF16, kInput), wide = norm_of(large, DType::kF16, kOpMath);
  EXPECT_TRUE(std::isinf(narrow.mean));
  for (const double y : narrow.out) EXPECT_TRUE(std::isnan(y));
  EXPECT_NEAR(wide.mean, 1984, 1);
  for (const double y : wide.out) EXPECT_TRUE(std::isfinite(y));
}

TEST(StatisticsInFp16, overflow_in_a_square_from_256_and_make_the_channel_0) {
  const Normed below = norm_of(alternating(255, 4), DType::kF16, kInput);
  EXPECT_TRUE(std::isinf(below.variance));  // four squares of 65025: their sum
  EXPECT_FALSE(std::isinf(norm_of(alternating(124, 4), DType::kF16, kInput).variance));
  const Normed narrow = norm_of(alternating(256, 2), DType::kF16, kInput);
  EXPECT_TRUE(std::isinf(narrow.variance));
  for (const double y : narrow.out) EXPECT_EQ(y, 0);
  EXPECT_NEAR(norm_of(alternating(256, 2), DType::kF16, kOpMath).out[0], 1, 1e-3);
  EXPECT_NEAR(norm_of(alternating(256, 2), DType::kBF16, kInput).out[0], 1, 1e-2);  // bf16 has the range
}

TEST(StatisticsInFp16, lose_a_small_variance_and_most_of_eps) {
  // given numbers whose squares are below 2^-25, half of the smallest fp16 number
  const std::vector<double> small = alternating(0x1p-13, 64);
  EXPECT_EQ(norm_of(small, DType::kF16, kInput).variance, 0);
  EXPECT_GT(norm_of(small, DType::kF16, kOpMath, 1e-12).out[0], 0.99);
  // then eps alone is left: of 1e-5 a subnormal of 168 steps, of 1e-8 nothing
  EXPECT_NEAR(norm_of(small, DType::kF16, kInput).out[0], 0x1p-13 / std::sqrt(168 * 0x1p-24), 1e-4);
  EXPECT_TRUE(std::isinf(norm_of(small, DType::kF16, kInput, 1e-8).out[0]));
  EXPECT_TRUE(std::isnan(norm_of(std::vector<double>(64, 1), DType::kF16, kInput, 1e-8).out[0]));
  EXPECT_EQ(norm_of(std::vector<double>(64, 1), DType::kF16, kOpMath, 1e-8).out[0], 0);
}

// Numbers of a format, each result rounded.
class Rounded {
 public:
  explicit Rounded(DType dtype) : dtype_(dtype) {}
  double operator()(double x) const { return round_to(dtype_, x); }
  double sum(const std::vector<double>& terms) const {
    double total = 0;
    for (const double term : terms) total = (*this)(total + term);
    return total;
  }
  double mean(const std::vector<double>& terms) const {
    return (*this)(sum(terms) / static_cast<double>(terms.size()));
  }

 private:
  DType dtype_;
};

struct Gradients {
  std::vector<double> out, input;
  double weight = 0, bias = 0;
};

// One channel, or one row with a weight and a bias of one number, by the formulas of batch norm in training.
Gradients batch_norm_by_loops(const Rounded& r, const std::vector<double>& x, const std::vector<double>& dy,
                              double weight, double bias, double eps) {
  Gradients g;
  std::vector<double> squares, d, products;
  const double mean = r.mean(x);
  for (const double v : x) d.push_back(r(v - mean));
  for (const double v : d) squares.push_back(r(v * v));
  const double invstd = r(1 / r(std::sqrt(r(r.mean(squares) + r(eps))))), scale = r(invstd * weight);
  for (const double v : d) g.out.push_back(r(r(v * scale) + bias));
  for (std::size_t i = 0; i < x.size(); ++i) products.push_back(r(dy[i] * d[i]));
  const auto n = static_cast<double>(x.size());
  const double total = r.sum(dy), dot = r.sum(products);
  g.weight = r(dot * invstd);
  g.bias = total;
  const double slope = r(r(r(dot * invstd) * invstd) / n), average = r(total / n);
  for (std::size_t i = 0; i < x.size(); ++i) g.input.push_back(r(r(r(dy[i] - average) - r(d[i] * slope)) * scale));
  return g;
}

Gradients layer_norm_by_loops(const Rounded& r, const std::vector<double>& x, const std::vector<double>& dy,
                              const std::vector<double>& weight, const std::vector<double>& bias, double eps) {
  Gradients g;
  std::vector<double> squares, d, weighted, products, normalised;
  const double mean = r.mean(x);
  for (const double v : x) d.push_back(r(v - mean));
  for (const double v : d) squares.push_back(r(v * v));
  const double rstd = r(1 / r(std::sqrt(r(r.mean(squares) + r(eps)))));
  for (std::size_t i = 0; i < x.size(); ++i) {
    g.out.push_back(r(r(r(d[i] * rstd) * weight[i]) + bias[i]));
    normalised.push_back(r(d[i] * rstd));
    weighted.push_back(r(dy[i] * weight[i]));
    products.push_back(r(weighted[i] * normalised[i]));
  }
  const double mean_d = r.mean(weighted), mean_product = r.mean(products);
  for (std::size_t i = 0; i < x.size(); ++i) {
    g.input.push_back(r(rstd * r(r(weighted[i] - mean_d) - r(normalised[i] * mean_product))));
  }
  return g;
}

TEST(StatisticsInTheInputsFormat, have_the_bits_of_loops_that_round_every_result) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const DType parameters : {dtype, DType::kF32}) {
      for (const std::int64_t n : {2, 17, 300}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + ", " + std::to_string(n) + " values");
        const Rounded r(dtype);
        const Tensor x = spread_tensor({n, 1}, -3, 40, dtype).set_requires_grad(true);
        const Tensor dy = spread_tensor({n, 1}, -1, 1.3, dtype);
        const Tensor weight = Tensor::full({1}, 1.5, parameters).set_requires_grad(true);
        const Tensor bias = Tensor::full({1}, 0.25, parameters).set_requires_grad(true);
        Tensor mean = Tensor::zeros({1}, parameters), var = Tensor::full({1}, 1, parameters);
        const Tensor out = batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-3, kInput);
        sum(mul(out, dy)).backward();
        const Gradients expected = batch_norm_by_loops(r, x.to_vector(), dy.to_vector(), 1.5, 0.25, 1e-3);
        EXPECT_EQ(out.to_vector(), expected.out);
        EXPECT_EQ(x.grad().to_vector(), expected.input);
        EXPECT_EQ(weight.grad().item(), expected.weight);
        EXPECT_EQ(bias.grad().item(), expected.bias);

        const Tensor row = spread_tensor({1, n}, -3, 40, dtype).set_requires_grad(true);
        const Tensor up = spread_tensor({1, n}, -1, 1.3, dtype), gain = spread_tensor({n}, 0.5, 2, dtype);
        const Tensor offset = spread_tensor({n}, -1, 1, dtype);
        const Tensor normed = layer_norm(row, to(gain, parameters), to(offset, parameters), 1e-3, kInput);
        sum(mul(normed, up)).backward();
        const Gradients by_row = layer_norm_by_loops(r, row.to_vector(), up.to_vector(), gain.to_vector(),
                                                     offset.to_vector(), 1e-3);
        EXPECT_EQ(normed.to_vector(), by_row.out);
        EXPECT_EQ(row.grad().to_vector(), by_row.input);
      }
    }
  }
}

TEST(StatisticsInTheInputsFormat, are_op_math_where_the_input_is_wide) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = spread_tensor({40, 1}, -3, 4, dtype);
    const std::vector<double> values = x.to_vector();
    EXPECT_EQ(norm_of(values, dtype, kInput).out, norm_of(values, dtype, kOpMath).out);
    EXPECT_EQ(layer_norm(x, {}, {}, 1e-5, kInput).to_vector(), layer_norm(x, {}, {}).to_vector());
  }
}

TEST(StatisticsInTheInputsFormat, use_running_ones_in_evaluation_in_that_format) {
  Tensor mean = Tensor::full({1}, 100, DType::kF16), var = Tensor::zeros({1}, DType::kF16);
  const Tensor one = Tensor::full({1}, 1, DType::kF16), x = Tensor::full({1, 1}, 101, DType::kF16);
  const auto out = [&](NormStatistics statistics) {
    return batch_norm(x, one, one, mean, var, false, 0.1, 1e-9, statistics).item();
  };
  EXPECT_TRUE(std::isinf(out(kInput)));  // 1e-9 is 0 in fp16
  EXPECT_NEAR(out(kOpMath), 1 + 31623, 16);
}

struct Told : Observer {
  std::vector<std::pair<std::string, DType>> computed, stored;  // op, slot of what it stores
  void on_op(const OpCall& call) noexcept override {
    if (call.op.find("norm") == std::string_view::npos) return;
    computed.emplace_back(std::string(call.op), call.compute_dtype);
    for (const OpArgument& out : call.outputs) stored.emplace_back(std::string(out.slot), out.tensor->dtype());
  }
};

TEST(StatisticsInTheInputsFormat, are_told_as_what_the_op_computes_in_and_stores) {
  for (const NormStatistics statistics : {kInput, kOpMath}) {
    const DType expected = statistics == kInput ? DType::kF16 : DType::kF32;
    Told told;
    const HookHandle handle = add_observer(told);
    const Tensor x = spread_tensor({4, 2}, -1, 1, DType::kF16).set_requires_grad(true);
    const Tensor one = Tensor::full({2}, 1, DType::kF16);
    Tensor mean = Tensor::zeros({2}, DType::kF16), var = Tensor::full({2}, 1, DType::kF16);
    const Tensor normed = layer_norm(batch_norm(x, one, one, mean, var, true, 0.1, 1e-5, statistics), {}, {}, 1e-5,
                                     statistics);
    sum(normed).backward();
    using Pairs = std::vector<std::pair<std::string, DType>>;
    EXPECT_EQ(told.computed, (Pairs{{"native_batch_norm", expected},
                                    {"native_layer_norm", expected},
                                    {"native_layer_norm_backward", expected},
                                    {"native_batch_norm_backward", expected}}));
    EXPECT_EQ(told.stored, (Pairs{{"out", DType::kF16},
                                  {"save_mean", expected},
                                  {"save_invstd", expected},
                                  {"running_mean", DType::kF16},
                                  {"running_var", DType::kF16},
                                  {"out", DType::kF16},
                                  {"mean", expected},
                                  {"rstd", expected},
                                  {"grad_input", DType::kF16},
                                  {"grad_input", DType::kF16}}));
  }
}

}  // namespace
}  // namespace nanhunt::engine::testing
