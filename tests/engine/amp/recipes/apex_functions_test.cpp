// SPDX-License-Identifier: Apache-2.0
// Functions of a user's own on the lists of Apex O1.
#include <gtest/gtest.h>

#include <stdexcept>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

constexpr AutocastOptions kO1{.lists = CastLists::kApex};

Tensor of(DType dtype, double value = 2) { return Tensor::full({2}, value, dtype); }

// A sum of all its inputs, which tells the formats that it was given.
struct Watched {
  std::vector<DType> seen;
  TensorFunction function() {
    return [this](const std::vector<Tensor>& inputs) {
      seen.clear();
      for (const Tensor& input : inputs) seen.push_back(input.dtype());
      Tensor total = inputs[0];
      for (std::size_t i = 1; i < inputs.size(); ++i) total = add(total, inputs[i]);
      return total;
    };
  }
};

using Formats = std::vector<DType>;

TEST(ApexFunctions, get_arguments_in_the_format_of_their_list) {
  Watched watched;
  const TensorFunction half = apex_half_function(watched.function()), single = apex_float_function(watched.function());
  const Autocast region(kO1);
  EXPECT_EQ(half({of(DType::kF32), of(DType::kF16)}).dtype(), DType::kF16);
  EXPECT_EQ(watched.seen, (Formats{DType::kF16, DType::kF16}));
  EXPECT_EQ(single({of(DType::kF32), of(DType::kF16)}).dtype(), DType::kF32);
  EXPECT_EQ(watched.seen, (Formats{DType::kF32, DType::kF32}));
  half({of(DType::kF64)});
  EXPECT_EQ(watched.seen, Formats{DType::kF64}) << "left alone";
}

TEST(ApexFunctions, get_the_widest_of_fp16_and_fp32_where_they_promote) {
  Watched watched;
  const TensorFunction promote = apex_promote_function(watched.function());
  const Autocast region(kO1);
  promote({of(DType::kF16), of(DType::kF32)});
  EXPECT_EQ(watched.seen, (Formats{DType::kF32, DType::kF32}));
  promote({of(DType::kF16), of(DType::kF16)});
  EXPECT_EQ(watched.seen, (Formats{DType::kF16, DType::kF16})) << "of one format: nothing to promote";
  EXPECT_THROW(promote({of(DType::kF16), of(DType::kF64)}), std::invalid_argument);
}

TEST(ApexFunctions, get_what_they_are_given_outside_of_O1) {
  Watched watched;
  const TensorFunction half = apex_half_function(watched.function());
  half({of(DType::kF32)});
  EXPECT_EQ(watched.seen, Formats{DType::kF32});
  const Autocast torch_amp;
  half({of(DType::kF32)});
  EXPECT_EQ(watched.seen, Formats{DType::kF32}) << "torch.amp does not know them";
  const Autocast o1(kO1);
  const Autocast off({.enabled = false, .lists = CastLists::kApex});
  half({of(DType::kF32)});
  EXPECT_EQ(watched.seen, Formats{DType::kF32});
}

TEST(ApexFunctions, in_fp16_share_the_cast_of_a_parameter_with_the_ops) {
  // given
  const Tensor weight = Tensor::full({2, 2}, 1, DType::kF32).set_requires_grad(true);
  const Tensor x = Tensor::full({2, 2}, 1, DType::kF16);
  const TensorFunction product = apex_half_function([](const std::vector<Tensor>& in) { return mul(in[0], in[1]); });
  EventLog log;
  const HookHandle handle = add_observer(log);
  // when
  Tensor loss;
  {
    const Autocast region(kO1);
    loss = sum(add(matmul(x, weight), product({x, weight})));
  }
  // then
  EXPECT_EQ(log.starting_with("op forward  _to_copy").size(), 2U) << "the weight, and what is summed";
  loss.backward();
  EXPECT_EQ(weight.grad().at(0), 3);
}

// As Apex advises those who take binary_cross_entropy of a sigmoid.
TEST(ApexFunctions, in_fp32_make_binary_cross_entropy_possible) {
  const TensorFunction by_default = [](const std::vector<Tensor>& in) { return sigmoid(in[0]); };
  const TensorFunction registered = apex_float_function(by_default);
  const Tensor logits = of(DType::kF16, 0), target = of(DType::kF32, 1);
  const Autocast region(kO1);
  EXPECT_THROW(binary_cross_entropy(by_default({logits}), target), std::invalid_argument);
  EXPECT_NEAR(binary_cross_entropy(registered({logits}), target).item(), 0.6931, 1e-4);
}

}  // namespace
}  // namespace nanhunt::engine::testing
