// SPDX-License-Identifier: Apache-2.0
// Known answers, rounding and edges of what transformers are made of.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "nanhunt/engine/random.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::NanSensitiveDoubleEq;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor values(const std::vector<double>& list, const Shape& sizes, DType dtype = DType::kF32) {
  return Tensor::from_values(list, sizes, dtype);
}
Tensor bools(const std::vector<double>& list, const Shape& sizes) { return values(list, sizes, DType::kBool); }

TEST(LayerNorm, gives_rows_of_mean_0_and_variance_1_and_then_weight_and_bias) {
  const Tensor x = values({1, 2, 3, 4, 10, 10, 20, 20}, {2, 4});
  const Tensor out = layer_norm(x, values({1, 1, 1, 2}, {4}), values({0, 0, 0, 5}, {4}), 0);
  const double s = 1 / std::sqrt(1.25);
  const std::vector<double> expected = {-1.5 * s, -0.5 * s, 0.5 * s, 2 * 1.5 * s + 5, -1, -1, 1, 2 + 5};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(out.at(static_cast<std::int64_t>(i)), expected[i], 1e-6);
  }
}

TEST(LayerNorm, of_fp16_forms_statistics_and_eps_in_fp32) {
  // given: rows whose squares overflow fp16, and an eps that fp16 would flush to 0 beside a variance of 0
  const Tensor large = values({30000, -30000, 30000, -30000}, {1, 4}, DType::kF16);
  const Tensor constant = Tensor::full({1, 4}, 3, DType::kF16);
  EXPECT_THAT(layer_norm(large, {}, {}, 1e-8).to_vector(), ElementsAre(1, -1, 1, -1));
  EXPECT_THAT(layer_norm(constant, {}, {}, 1e-8).to_vector(), Each(0.0));
  // and: without eps the same row has no answer
  EXPECT_THAT(layer_norm(constant, {}, {}, 0).to_vector(), Each(NanSensitiveDoubleEq(kNan)));
  // and: an affine map may stay in fp32
  const Tensor out = layer_norm(large, Tensor::full({4}, 2, DType::kF32), {}, 0);
  EXPECT_EQ(out.dtype(), DType::kF16);
  EXPECT_THAT(out.to_vector(), ElementsAre(2, -2, 2, -2));
}

TEST(LayerNorm, rounds_the_fp32_result_once) {
  const std::vector<double> list = spread_values(300, -3, 3);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor x = values(list, {3, 100}, dtype);
    const Tensor wide = layer_norm(to(x, DType::kF32), {}, {}), narrow_ = layer_norm(x, {}, {});
    for (std::int64_t i = 0; i < x.numel(); ++i) EXPECT_EQ(narrow_.at(i), round_to(dtype, wide.at(i)));
  }
}

TEST(LayerNorm, keeps_a_bad_element_within_its_row) {
  const Tensor out = layer_norm(values({1, kInf, 1, 2}, {2, 2}), {}, {});
  EXPECT_TRUE(std::isnan(out.at(0)));
  EXPECT_TRUE(std::isnan(out.at(1)));
  EXPECT_TRUE(std::isfinite(out.at(2)));
}

TEST(Gelu, has_its_known_values_and_limits) {
  const Tensor x = values({0, 1, -1, 40, -40, kNan, kInf}, {7});
  const std::vector<double> exact = gelu(x).to_vector();
  EXPECT_EQ(exact[0], 0);
  EXPECT_NEAR(exact[1], 0.8413447460685429, 1e-7);
  EXPECT_NEAR(exact[2], -0.15865525393145707, 1e-7);
  EXPECT_EQ(exact[3], 40);
  EXPECT_EQ(exact[4], 0);
  EXPECT_TRUE(std::isnan(exact[5]));
  EXPECT_EQ(exact[6], kInf);
  const std::vector<double> approximate = gelu(x, GeluForm::kTanh).to_vector();
  EXPECT_NEAR(approximate[1], 0.8411919906082768, 1e-7);
  EXPECT_EQ(approximate[3], 40);
  // -Inf times 0, as in eager
  EXPECT_TRUE(std::isnan(gelu(values({-kInf}, {1})).item()));
}

TEST(Reciprocal, of_zero_is_infinite_and_its_gradient_too) {
  Tensor x = values({0, -0.0, 2, 1e-5}, {4}, DType::kF16).set_requires_grad(true);
  const Tensor y = reciprocal(x);
  EXPECT_THAT(y.to_vector(), ElementsAre(kInf, -kInf, 0.5, kInf));  // 1 / x overflows fp16 below 1.53e-5
  sum(y).backward();
  EXPECT_THAT(x.grad().to_vector(), ElementsAre(-kInf, -kInf, -0.25, -kInf));
}

TEST(Dropout, drops_about_p_scales_the_rest_and_repeats_with_the_stream) {
  // given
  const Tensor x = Tensor::full({100, 100}, 3, DType::kF32);
  RandomStream random(1, 2);
  // when
  const Tensor out = dropout(x, 0.25, random);
  // then
  double dropped = 0;
  for (double v : out.to_vector()) {
    EXPECT_TRUE(v == 0 || v == 4) << v;
    dropped += v == 0 ? 1 : 0;
  }
  EXPECT_NEAR(dropped / 10000, 0.25, 0.02);
  EXPECT_EQ(random.position(), 10000U);
  // and: from where the stream was, the same; from where it is, another
  EXPECT_NE(dropout(x, 0.25, random).to_vector(), out.to_vector());
  random.seek(0);
  EXPECT_EQ(dropout(x, 0.25, random).to_vector(), out.to_vector());
}

TEST(Dropout, multiplies_what_it_drops_by_zero_as_eager_does) {
  RandomStream random(1, 2);
  EXPECT_THAT(dropout(values({1, kInf}, {2}), 1, random).to_vector(), ElementsAre(0, NanSensitiveDoubleEq(kNan)));
  EXPECT_THAT(dropout(values({1, kInf}, {2}), 0, random).to_vector(), ElementsAre(1, kInf));
}

TEST(Attention, looks_only_where_the_masks_let_it) {
  // given: weights that tell which position a result came from
  const Tensor q = Tensor::zeros({1, 3, 2}, DType::kF32), k = q;
  const Tensor v = values({1, 10, 100}, {1, 3, 1});
  const Tensor later = bools({0, 1, 1, 0, 0, 1, 0, 0, 0}, {3, 3});
  // then: each position averages itself and what came before
  EXPECT_THAT(scaled_dot_product_attention(q, k, v, {.mask = later, .key_mask = {}}).to_vector(),
              ElementsAre(1, 5.5, 37));
  // and: without the padded first key; the first row then has nothing to look at
  const Tensor padded = bools({1, 0, 0}, {1, 1, 3});
  EXPECT_THAT(scaled_dot_product_attention(q, k, v, {.mask = later, .key_mask = padded}).to_vector(),
              ElementsAre(NanSensitiveDoubleEq(kNan), 10, 55));
  // and: a mask that is added instead
  const Tensor added = values({0, -kInf, -kInf, 0, 0, -kInf, 0, 0, 0}, {3, 3});
  EXPECT_THAT(scaled_dot_product_attention(q, k, v, {.mask = added, .key_mask = {}}).to_vector(),
              ElementsAre(1, 5.5, 37));
}

TEST(Attention, of_fp16_overflows_in_the_scores_before_they_are_scaled) {
  const Tensor q = Tensor::full({1, 1, 64}, 40, DType::kF16);
  const Tensor v = Tensor::full({1, 1, 1}, 1, DType::kF16);
  EXPECT_TRUE(std::isnan(scaled_dot_product_attention(q, q, v).item()));  // 64 * 1600 is Inf, Inf - Inf
  EXPECT_EQ(scaled_dot_product_attention(mul(q, 0.125), q, v).item(), 1);
}

TEST(Matmul, of_batches_is_that_of_each_matrix) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    std::vector<double> list;
    for (int i = 0; i < 2 * 3 * 4 * 5; ++i) list.push_back(i * 5 % 7 - 3);
    const Tensor a = values(list, {2, 3, 4, 5}, dtype), b = values(list, {2, 3, 5, 4}, dtype);
    const Tensor every = matmul(a, b), by_columns = matmul(a, transpose(transpose(b, -1, -2).clone(), -1, -2));
    EXPECT_EQ(every.sizes(), (Shape{2, 3, 4, 4}));
    EXPECT_EQ(every.to_vector(), by_columns.to_vector());
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) {
        const auto one = [i, j](const Tensor& x) { return select(select(x, 0, i), 0, j); };
        EXPECT_EQ(one(every).to_vector(), matmul(one(a), one(b)).to_vector());
      }
    }
    EXPECT_EQ(matmul(a, select(select(b, 0, 0), 0, 0)).sizes(), (Shape{2, 3, 4, 4}));
    EXPECT_EQ(matmul(a, select(b, 0, 0)).sizes(), (Shape{2, 3, 4, 4}));
  }
}

TEST(View, copies_only_what_strides_cannot_say) {
  const Tensor x = values(spread_values(24, 0, 1), {2, 3, 4});
  const Tensor swapped = transpose(x, 0, 1);  // (3, 2, 4)
  const auto shares = [&x](const Tensor& view) { return view.storage() == x.storage(); };
  EXPECT_TRUE(shares(reshape(swapped, {3, 2, 2, 2})));
  EXPECT_FALSE(shares(reshape(swapped, {6, 4})));
  EXPECT_TRUE(shares(reshape(narrow(x, 2, 0, 2), {6, 2})));
  EXPECT_TRUE(shares(reshape(permute(x, {2, 0, 1}), {4, 6})));
  for (const Tensor& view : {reshape(swapped, {6, 4}), reshape(swapped, {3, 1, 2, 2, 2}), reshape(swapped, {24})}) {
    EXPECT_EQ(view.to_vector(), swapped.to_vector());
  }
}

TEST(Transformer, misuse_says_what_was_expected) {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  RandomStream random(1, 1);
  const auto message = [](const std::function<void()>& f) {
    try {
      f();
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] { dropout(x, 1.5, random); }), "[native_dropout] expected p in [0, 1], got 1.5");
  EXPECT_EQ(message([&] { permute(x, {0, 0}); }), "[permute] expected each dimension of [2, 3] once, got [0, 0]");
  EXPECT_EQ(message([&] { transpose(x, 0, 2); }), "[transpose] expected a dimension of [2, 3], got 2");
  EXPECT_EQ(message([&] { expand(x, {2, 4}); }), "[expand] expected shapes that broadcast, got [2, 3] and [2, 4]");
  EXPECT_EQ(message([&] { layer_norm(x, Tensor::zeros({2}, DType::kF32), {}); }),
            "[native_layer_norm] expected weight of [3], got fp32 [2]");
  EXPECT_EQ(message([&] { bmm(reshape(x, {1, 2, 3}), Tensor::zeros({2, 3, 1}, DType::kF32)); }),
            "[bmm] expected as many matrices on the left as on the right, got fp32 [1, 2, 3] and fp32 [2, 3, 1]");
  EXPECT_EQ(message([&] { scaled_dot_product_attention(x, x, x, {.mask = {}, .key_mask = {}, .dropout = 0.5}); }),
            "[scaled_dot_product_attention] expected a random stream for dropout, got none");
}

}  // namespace
}  // namespace nanhunt::engine::testing
