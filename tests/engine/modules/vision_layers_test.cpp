// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine {
namespace {

Tensor ramp(const Shape& sizes) {
  std::vector<double> values;
  std::int64_t n = 1;
  for (std::int64_t size : sizes) n *= size;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>(i % 7) - 3);
  return Tensor::from_values(values, sizes, DType::kF32);
}

TEST(Conv2d, keeps_the_size_by_default_and_starts_within_one_over_root_of_its_window) {
  RandomStream random(1, 0);
  Conv2d layer(3, 20, {}, random);
  EXPECT_EQ(layer(ramp({2, 3, 5, 4})).sizes(), (Shape{2, 20, 5, 4}));
  const auto parameters = layer.named_parameters();
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].tensor.sizes(), (Shape{20, 3, 3, 3}));
  const double bound = 1 / std::sqrt(27.0);
  double largest = 0;
  for (double w : parameters[0].tensor.to_vector()) largest = std::max(largest, std::fabs(w));
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.98 * bound);
}

TEST(Conv2d, takes_a_stride_a_padding_and_no_bias) {
  RandomStream random(1, 0);
  Conv2d layer(1, 2, {.kernel = 2, .stride = 2, .padding = 1, .with_bias = false}, random);
  EXPECT_EQ(layer(ramp({1, 1, 4, 4})).sizes(), (Shape{1, 2, 3, 3}));
  EXPECT_EQ(layer.named_parameters().size(), 1u);
  EXPECT_THROW(Conv2d(0, 2, {}, random), std::invalid_argument);
}

TEST(BatchNorm2d, normalises_by_the_batch_in_training_and_by_what_it_learned_afterwards) {
  BatchNorm2d layer(2);
  const Tensor x = ramp({4, 2, 3, 3});
  // when: it has seen the batch many times
  Tensor trained;
  for (int i = 0; i < 200; ++i) trained = layer(x);
  layer.train(false);
  const Tensor used = layer(x);
  // then: running statistics are those of the batch (variance unbiased, so not quite)
  EXPECT_EQ(layer.named_buffers()[0].path, "running_mean");
  for (std::int64_t i = 0; i < x.numel(); ++i) EXPECT_NEAR(used.at(i), trained.at(i), 0.03);
  EXPECT_NEAR(mean(trained).item(), 0, 1e-6);
  EXPECT_NEAR(norm(trained).item(), std::sqrt(72.0), 1e-3);
}

TEST(Module, train_reaches_every_module_below) {
  Cnn net({.channels = 2});
  const Tensor x = ramp({3, 64});
  net.train(false);
  EXPECT_FALSE(net.training());
  const auto before = testing::bytes_of(net.named_buffers());
  net(x);
  EXPECT_EQ(testing::bytes_of(net.named_buffers()), before);
  net.train();
  net(x);
  EXPECT_NE(testing::bytes_of(net.named_buffers()), before);
}

TEST(ResidualBlock, adds_its_input_before_the_last_relu) {
  RandomStream random(1, 0);
  ResidualBlock block(2, random);
  testing::EventLog log;
  const HookHandle handle = add_observer(log);
  // given: batch norms that multiply by 0, so that only the way around is left
  for (auto& [path, tensor] : block.named_parameters()) {
    if (path.starts_with("bn")) tensor.copy_from(Tensor::zeros(tensor.sizes(), DType::kF32));
  }
  const Tensor x = ramp({2, 2, 3, 3});
  const Tensor out = block(x);
  const auto ops = log.starting_with("op");
  EXPECT_EQ(out.to_vector(), relu(x).to_vector());
  ASSERT_GE(ops.size(), 7u);
  EXPECT_EQ(ops[0], "op forward conv1 convolution");
  EXPECT_EQ(ops[1], "op forward bn1 native_batch_norm");
  EXPECT_EQ(ops[5], "op forward  add");
  EXPECT_EQ(ops[6], "op forward relu2 relu");
}

TEST(Pooling, layers_change_the_size_as_they_say) {
  const Tensor x = ramp({2, 3, 4, 4});
  EXPECT_EQ(MaxPool2d(2)(x).sizes(), (Shape{2, 3, 2, 2}));
  EXPECT_EQ(AvgPool2d(4)(x).sizes(), (Shape{2, 3, 1, 1}));
  EXPECT_EQ(Upsample(3)(x).sizes(), (Shape{2, 3, 12, 12}));
  EXPECT_EQ(Flatten()(x).sizes(), (Shape{2, 48}));
}

TEST(Cnn, maps_digits_to_classes_with_the_same_weights_for_a_seed) {
  Cnn first({.channels = 4, .seed = 3}), same({.channels = 4, .seed = 3}), other({.channels = 4, .seed = 4});
  EXPECT_EQ(first(ramp({5, 64})).sizes(), (Shape{5, 10}));
  EXPECT_EQ(testing::bytes_of(first.named_parameters()).size(), testing::bytes_of(other.named_parameters()).size());
  EXPECT_EQ(testing::bytes_of(first.named_parameters()), testing::bytes_of(same.named_parameters()));
  EXPECT_NE(testing::bytes_of(first.named_parameters()), testing::bytes_of(other.named_parameters()));
  std::vector<std::string> paths;
  for (const auto& entry : first.named_buffers()) paths.push_back(entry.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"bn1.running_mean", "bn1.running_var", "block.bn1.running_mean",
                                             "block.bn1.running_var", "block.bn2.running_mean",
                                             "block.bn2.running_var", "bn2.running_mean", "bn2.running_var"}));
}

TEST(UNet, maps_images_to_images_through_skip_connections) {
  UNet net({.channels = 2});
  testing::EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_EQ(net(ramp({3, 64})).sizes(), (Shape{3, 64}));
  EXPECT_EQ(log.starting_with("op forward  cat").size(), 2u);
  EXPECT_EQ(log.starting_with("op forward merge1.conv convolution").size(), 1u);
}

}  // namespace
}  // namespace nanhunt::engine
