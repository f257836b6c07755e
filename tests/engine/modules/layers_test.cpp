// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine {
namespace {

TEST(Linear, computes_x_w_transposed_plus_b) {
  RandomStream random(1, 0);
  Linear layer(2, 3, random, DType::kF64);
  auto parameters = layer.named_parameters();
  ASSERT_EQ(parameters.size(), 2u);
  parameters[0].tensor.copy_from(Tensor::from_values(std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2}, DType::kF64));
  parameters[1].tensor.copy_from(Tensor::from_values(std::vector<double>{0.5, 0, -1}, {3}, DType::kF64));
  const Tensor out = layer(Tensor::from_values(std::vector<double>{1, 10, -1, 0}, {2, 2}, DType::kF64));
  EXPECT_EQ(out.to_vector(), (std::vector<double>{21.5, 43, 64, -0.5, -3, -6}));
}

TEST(Linear, starts_within_one_over_root_of_its_inputs_and_fills_that_range) {
  RandomStream random(2, 0);
  const Linear layer(64, 100, random);
  double low = 1, high = -1;
  for (double w : layer.weight().to_vector()) {
    low = std::min(low, w);
    high = std::max(high, w);
  }
  EXPECT_GE(low, -0.125);
  EXPECT_LE(high, 0.125);
  EXPECT_LT(low, -0.12);
  EXPECT_GT(high, 0.12);
}

TEST(Linear, without_bias_has_one_parameter) {
  RandomStream random(3, 0);
  Linear layer(4, 2, random, DType::kF32, /*with_bias=*/false);
  EXPECT_EQ(layer.named_parameters().size(), 1u);
  EXPECT_EQ(layer(Tensor::zeros({1, 4}, DType::kF32)).to_vector(), (std::vector<double>{0, 0}));
}

TEST(Linear, refuses_an_input_of_another_width) {
  RandomStream random(3, 0);
  Linear layer(4, 2, random);
  EXPECT_THROW(layer(Tensor::zeros({1, 5}, DType::kF32)), std::invalid_argument);
  EXPECT_THROW(Linear(0, 2, random), std::invalid_argument);
}

TEST(Embedding, picks_rows_and_sums_gradients_of_a_row_used_twice) {
  RandomStream random(4, 0);
  Embedding layer(5, 3, random, DType::kF64);
  Tensor weight = layer.named_parameters()[0].tensor;
  const Tensor out = layer(Tensor::from_indices(std::vector<std::int64_t>{4, 1, 4}, {3}));
  ASSERT_EQ(out.sizes(), (Shape{3, 3}));
  EXPECT_EQ(out.at(0), weight.at(12));
  EXPECT_EQ(out.at(3), weight.at(3));
  sum(out).backward();
  EXPECT_EQ(weight.grad().at(12), 2);
  EXPECT_EQ(weight.grad().at(3), 1);
  EXPECT_EQ(weight.grad().at(0), 0);
}

TEST(Sequential, chains_activations_and_numbers_unnamed_children) {
  RandomStream random(5, 0);
  Sequential net;
  net.append(std::make_unique<Tanh>());
  net.append(std::make_unique<Relu>());
  testing::EventLog log;
  const HookHandle handle = add_observer(log);
  const Tensor out = net(Tensor::from_values(std::vector<double>{-1, 2}, {2}, DType::kF64));
  EXPECT_EQ(out.at(0), 0);
  EXPECT_DOUBLE_EQ(out.at(1), std::tanh(2.0));
  EXPECT_EQ(log.starting_with("op"), (std::vector<std::string>{"op forward 0 tanh", "op forward 1 relu"}));
}

TEST(Mlp, has_the_asked_layers_and_the_same_weights_for_a_seed) {
  Mlp first({.sizes = {64, 20, 10}, .seed = 3}), same({.sizes = {64, 20, 10}, .seed = 3});
  Mlp other({.sizes = {64, 20, 10}, .seed = 4}), half({.sizes = {64, 20, 10}, .dtype = DType::kF16, .seed = 3});
  const auto parameters = first.named_parameters();
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_EQ(parameters[0].path, "fc1.weight");
  EXPECT_EQ(parameters[0].tensor.sizes(), (Shape{20, 64}));
  EXPECT_EQ(parameters[3].path, "fc2.bias");
  EXPECT_EQ(testing::bytes_of(parameters), testing::bytes_of(same.named_parameters()));
  EXPECT_NE(testing::bytes_of(parameters), testing::bytes_of(other.named_parameters()));
  EXPECT_NEAR(half.named_parameters()[0].tensor.at(7), parameters[0].tensor.at(7), 1e-4);
  EXPECT_THROW(Mlp({.sizes = {64}}), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
