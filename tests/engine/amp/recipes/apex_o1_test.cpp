// SPDX-License-Identifier: Apache-2.0
// Apex O1: an fp32 model, and casts around ops by Apex's lists.
#include <gtest/gtest.h>

#include <set>

#include "nanhunt/engine/autograd.h"
#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

constexpr AutocastOptions kO1{.lists = CastLists::kApex};

TEST(ApexO1, leaves_the_model_in_fp32_and_casts_each_weight_once_a_step) {
  // given
  const auto trainer = train_by({});
  EventLog log;
  const HookHandle handle = add_observer(log);
  // when
  trainer->step();
  // then: convolutions run in fp16, of weights that stay fp32 and get fp32 gradients
  for (const auto& [path, parameter] : trainer->model().named_parameters()) {
    EXPECT_EQ(parameter.dtype(), DType::kF32) << path;
    EXPECT_EQ(parameter.grad().dtype(), DType::kF32) << path;
  }
  EXPECT_EQ(log.starting_with("op forward conv2 _to_copy").size(), 1U) << "the weight; its input is fp16 already";
  EXPECT_EQ(log.starting_with("op backward conv2 _to_copy_backward").size(), 1U);
  EXPECT_TRUE(log.starting_with("op forward bn1 _to_copy").empty()) << "batch norm takes fp16 with fp32 statistics";
  EXPECT_TRUE(log.starting_with("op optimizer bn1.weight _to_copy").empty());
}

TEST(ApexO1, casts_what_torch_only_widens_the_result_of) {
  const NoGradGuard no_grad;
  const Autocast region(kO1);
  const Tensor half = Tensor::full({2, 4}, 1, DType::kF16);
  const Tensor target = Tensor::zeros({2}, DType::kI64);
  const std::pair<const char*, std::function<Tensor()>> calls[] = {
      {"softmax", [&] { return softmax(half, 1); }},   {"log_softmax", [&] { return log_softmax(half, 1); }},
      {"sum", [&] { return sum(half); }},              {"norm", [&] { return norm(half); }},
      {"gelu", [&] { return gelu(half); }},            {"cross_entropy", [&] { return cross_entropy(half, target); }},
  };
  for (const auto& [name, call] : calls) {
    EventLog log;
    const HookHandle handle = add_observer(log);
    EXPECT_EQ(call().dtype(), DType::kF32) << name;
    EXPECT_EQ(log.starting_with("op forward  _to_copy").size(), 1U) << name;
  }
}

TEST(ApexO1, casts_the_parts_of_attention_which_it_does_not_know) {
  const NoGradGuard no_grad;
  const Autocast region(kO1);
  const Tensor x = Tensor::full({1, 2, 4}, 1, DType::kF32);
  EventLog log;
  const HookHandle handle = add_observer(log);
  EXPECT_EQ(scaled_dot_product_attention(x, x, x).dtype(), DType::kF16);
  std::vector<std::string> parts;
  for (const std::string& line : log.starting_with("op ")) {
    if (line.ends_with("_to_copy") || line.ends_with("softmax") || line.ends_with("bmm")) {
      parts.push_back(line.substr(line.rfind(' ') + 1));
    }
  }
  // both operands, the product, its result to fp32 and back, the value
  EXPECT_EQ(parts, (std::vector<std::string>{"_to_copy", "_to_copy", "bmm", "_to_copy", "softmax", "_to_copy",
                                             "_to_copy", "bmm"}));
}

TEST(ApexO1, promotes_fp16_with_fp32_and_leaves_one_format_alone) {
  const NoGradGuard no_grad;
  const Autocast region(kO1);
  const auto of = [](DType dtype) { return Tensor::full({2}, 2, dtype); };
  const Tensor half = of(DType::kF16), single = of(DType::kF32);
  EXPECT_EQ(add(half, single).dtype(), DType::kF32);
  EXPECT_EQ(mul(single, half).dtype(), DType::kF32);
  EXPECT_EQ(div(half, half).dtype(), DType::kF16);
  EXPECT_EQ(cat({half, single}).dtype(), DType::kF32);
  EXPECT_EQ(addcmul(half, single, half).dtype(), DType::kF32);
  EXPECT_EQ(mean(half).dtype(), DType::kF16) << "on no list";
}

TEST(ApexO1, computes_the_bits_of_torch_where_only_the_way_of_casting_differs) {
  // the model has none of the ops whose formats differ
  const auto apex = train_by({.loss_scale = 1024.0});
  TrainingSetup setup = fp32_setup();
  setup.options.autocast = AutocastOptions{};
  setup.options.scaler = GradScalerOptions{.init_scale = 1024, .dynamic = false};
  const auto torch = train_on_digits(std::move(setup));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(apex->step().loss, torch->step().loss);
  EXPECT_EQ(bytes_of(*apex), bytes_of(*torch));
}

}  // namespace
}  // namespace nanhunt::engine::testing
