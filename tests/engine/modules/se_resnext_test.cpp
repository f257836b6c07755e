// SPDX-License-Identifier: Apache-2.0
// Grouped convolutions as a layer, squeeze and excitation, and the model made of them.
#include <gmock/gmock.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "tests/engine/event_log.h"
#include "tests/support/bytes_of.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::EventLog;
using testing::spread_tensor;

Tensor parameter_of(const Module& module, const std::string& path) {
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (name == path) return tensor;
  }
  ADD_FAILURE() << "no parameter " << path;
  return {};
}

template <typename F>
void expect_throws(F f, const std::string& text) {
  EXPECT_THAT(f, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
}

TEST(Conv2d, in_groups_has_a_filter_for_each_share_and_the_bound_of_its_inputs) {
  RandomStream random(1, 0);
  Conv2d conv(8, 12, {.kernel = 3, .groups = 4}, random);
  const Tensor weight = parameter_of(conv, "weight"), bias = parameter_of(conv, "bias");
  EXPECT_EQ(weight.sizes(), (Shape{12, 2, 3, 3}));
  for (const double w : weight.to_vector()) EXPECT_LE(std::fabs(w), 1 / std::sqrt(2.0 * 9));
  const Tensor x = spread_tensor({2, 8, 5, 5}, -1, 1, DType::kF32);
  EXPECT_EQ(conv(x).to_vector(), conv2d(x, weight, bias, 1, 1, 4).to_vector());
  expect_throws([&] { Conv2d(9, 12, {.groups = 4}, random); },
                "[conv2d] expected groups that divide the input channels, got 4 of 9");
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

TEST(SqueezeExcitation, multiplies_each_channel_by_what_the_means_of_all_say) {
  RandomStream random(3, 0);
  SqueezeExcitation se(4, 2, random, DType::kF64);
  const Tensor x = spread_tensor({2, 4, 3, 2}, -2, 3, DType::kF64);
  const std::vector<double> in = x.to_vector(), out = se(x).to_vector();
  const auto numbers = [&](const char* path) { return parameter_of(se, path).to_vector(); };
  const std::vector<double> w1 = numbers("fc1.weight"), b1 = numbers("fc1.bias");
  const std::vector<double> w2 = numbers("fc2.weight"), b2 = numbers("fc2.bias");
  ASSERT_EQ(b1.size(), 2u);
  for (std::size_t image = 0; image < 2; ++image) {
    double means[4] = {}, hidden[2] = {};
    for (std::size_t c = 0; c < 4; ++c) {
      for (std::size_t p = 0; p < 6; ++p) means[c] += in[(image * 4 + c) * 6 + p] / 6;
    }
    for (std::size_t h = 0; h < 2; ++h) {
      double sum = b1[h];
      for (std::size_t c = 0; c < 4; ++c) sum += w1[h * 4 + c] * means[c];
      hidden[h] = std::max(sum, 0.0);
    }
    for (std::size_t c = 0; c < 4; ++c) {
      const double share = sigmoid_of(b2[c] + w2[c * 2] * hidden[0] + w2[c * 2 + 1] * hidden[1]);
      for (std::size_t p = 0; p < 6; ++p) {
        const std::size_t at = (image * 4 + c) * 6 + p;
        EXPECT_NEAR(out[at], in[at] * share, 1e-12);
      }
    }
  }
}

TEST(SqueezeExcitation, has_the_gradients_of_its_formula) {
  RandomStream random(3, 0);
  SqueezeExcitation se(4, 2, random, DType::kF64);
  testing::expect_gradients_match([&](const std::vector<Tensor>& in) { return se(in[0]); },
                                  {spread_tensor({2, 4, 2, 2}, -2, 3).set_requires_grad(true)}, 1e-6);
}

TEST(SqueezeExcitation, refuses_what_it_cannot_squeeze) {
  RandomStream random(3, 0);
  expect_throws([&] { SqueezeExcitation(4, 0, random); },
                "[squeeze_excitation] expected a reduction of 1 or more, got 0");
  SqueezeExcitation se(2, 16, random);
  EXPECT_EQ(parameter_of(se, "fc1.weight").sizes(), (Shape{1, 2}));  // one at least
  expect_throws([&] { se(Tensor::zeros({2, 2}, DType::kF32)); },
                "[squeeze_excitation] expected input with 4 dimension(s)");
}

TEST(SeResNeXtBlock, adds_its_input_before_the_last_relu) {
  RandomStream random(1, 0);
  SeResNeXtBlock block({.in_channels = 4, .width = 4, .out_channels = 4, .groups = 2}, random);
  // given: a last batch norm that multiplies by 0, so that only the way around is left
  parameter_of(block, "bn3.weight").copy_from(Tensor::zeros({4}, DType::kF32));
  const Tensor x = spread_tensor({2, 4, 3, 3}, -1, 1, DType::kF32);
  EventLog log;
  const HookHandle handle = add_observer(log);
  const Tensor out = block(x);
  EXPECT_EQ(out.to_vector(), relu(x).to_vector());
  const auto ops = log.starting_with("op");
  ASSERT_GE(ops.size(), 8u);
  EXPECT_EQ(ops[0], "op forward conv1 convolution");
  EXPECT_EQ(ops[3], "op forward conv2 convolution");
  EXPECT_EQ(ops[6], "op forward conv3 convolution");
}

TEST(SeResNeXtBlock, leads_the_input_around_by_a_convolution_where_the_shape_changes) {
  RandomStream random(1, 0);
  SeResNeXtBlock block({.in_channels = 4, .width = 8, .out_channels = 6, .groups = 4, .stride = 2}, random);
  EXPECT_EQ(block(spread_tensor({2, 4, 8, 8}, -1, 1, DType::kF32)).sizes(), (Shape{2, 6, 4, 4}));
  EXPECT_EQ(parameter_of(block, "conv2.weight").sizes(), (Shape{8, 2, 3, 3}));
  EXPECT_EQ(parameter_of(block, "shortcut.conv.weight").sizes(), (Shape{6, 4, 1, 1}));
}

TEST(SeResNeXt, maps_digits_to_classes_with_the_same_weights_for_a_seed) {
  SeResNeXt first({.channels = 8, .seed = 3}), same({.channels = 8, .seed = 3}), other({.channels = 8, .seed = 4});
  EXPECT_EQ(first(spread_tensor({5, 64}, -1, 1, DType::kF32)).sizes(), (Shape{5, 10}));
  EXPECT_EQ(testing_support::bytes_of(first.named_parameters()), testing_support::bytes_of(same.named_parameters()));
  EXPECT_NE(testing_support::bytes_of(first.named_parameters()), testing_support::bytes_of(other.named_parameters()));
  EXPECT_EQ(parameter_of(first, "block2.se.fc1.weight").sizes(), (Shape{4, 16}));
}

}  // namespace
}  // namespace nanhunt::engine
