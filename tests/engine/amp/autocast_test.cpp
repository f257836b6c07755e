// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <thread>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "src/engine/amp/dispatch.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;

Tensor parameter(const Shape& sizes, double value) {
  return Tensor::full(sizes, value, DType::kF32).set_requires_grad(true);
}

TEST(Autocast, regions_nest_and_give_back_what_they_found) {
  EXPECT_FALSE(autocast_enabled());
  {
    const Autocast outer;
    EXPECT_TRUE(autocast_enabled());
    EXPECT_EQ(autocast_dtype(), DType::kF16);
    EXPECT_TRUE(autocast_cache_enabled());
    {
      const Autocast inner({.dtype = DType::kBF16, .cache = false});
      EXPECT_EQ(autocast_dtype(), DType::kBF16);
      EXPECT_FALSE(autocast_cache_enabled());
      const Autocast off({.enabled = false});
      EXPECT_FALSE(autocast_enabled());
    }
    EXPECT_TRUE(autocast_enabled());
    EXPECT_EQ(autocast_dtype(), DType::kF16);
    EXPECT_TRUE(autocast_cache_enabled());
  }
  EXPECT_FALSE(autocast_enabled());
}

TEST(Autocast, is_of_its_thread_and_ends_with_an_exception) {
  const auto throwing = [] {
    const Autocast region;
    throw std::runtime_error("a forward that fails");
  };
  EXPECT_THROW(throwing(), std::runtime_error);
  EXPECT_FALSE(autocast_enabled());
  const Autocast region;
  bool elsewhere = true;
  std::thread([&] { elsewhere = autocast_enabled(); }).join();
  EXPECT_FALSE(elsewhere);
}

TEST(Autocast, knows_fp16_and_bf16_only) {
  EXPECT_THROW(Autocast({.dtype = DType::kF32}), std::invalid_argument);
  EXPECT_FALSE(autocast_enabled());
}

TEST(Autocast, warns_on_the_cpu_of_a_format_that_it_does_not_know_and_stays_off) {
  {
    const Autocast region({.dtype = DType::kF32, .device = AutocastDevice::kCpu});
    EXPECT_FALSE(autocast_enabled());
    EXPECT_EQ(region.warning(),
              "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
              "CPU Autocast only supports dtypes of torch.bfloat16, torch.float16 currently.");
  }
  const Autocast region({.dtype = DType::kF16, .device = AutocastDevice::kCpu});
  EXPECT_TRUE(autocast_enabled());
  EXPECT_EQ(region.warning(), "");
}

TEST(Autocast, has_the_format_of_its_device_or_of_the_region_around_it) {
  const Autocast cpu({.device = AutocastDevice::kCpu});
  EXPECT_EQ(autocast_dtype(), DType::kBF16);
  const Autocast cuda;
  EXPECT_EQ(autocast_dtype(), DType::kF16);
  const Autocast other({.dtype = DType::kBF16, .cache = false});
  const Autocast inner;
  EXPECT_EQ(autocast_dtype(), DType::kBF16) << "as the region around it";
  EXPECT_FALSE(autocast_cache_enabled());
}

TEST(Autocast, of_one_device_goes_on_where_that_of_another_is_switched_off) {
  const Tensor x = Tensor::full({2, 2}, 1, DType::kF32);
  const Autocast cuda;
  {
    const Autocast cpu({.device = AutocastDevice::kCpu});
    EXPECT_EQ(matmul(x, x).dtype(), DType::kBF16) << "the innermost one rules";
    EXPECT_EQ(exp(matmul(x, x)).dtype(), DType::kBF16) << "on no list of the CPU";
    const Autocast off({.enabled = false, .device = AutocastDevice::kCpu});
    EXPECT_EQ(exp(matmul(x, x)).dtype(), DType::kF32) << "CUDA's lists again";
    const Autocast all_off({.enabled = false});
    EXPECT_FALSE(autocast_enabled());
    EXPECT_EQ(matmul(x, x).dtype(), DType::kF32);
  }
  EXPECT_EQ(matmul(x, x).dtype(), DType::kF16);
}

TEST(Autocast, takes_fp32_for_what_the_cpu_lists_and_leaves_the_rest_alone) {
  const Tensor x = Tensor::full({2, 2}, 0.5, DType::kBF16);
  const Autocast region({.device = AutocastDevice::kCpu});
  EXPECT_EQ(mse_loss(x, x).dtype(), DType::kF32);
  EXPECT_EQ(softmax(x, 1).dtype(), DType::kBF16);
  EXPECT_EQ(sum(x).dtype(), DType::kBF16);
  EXPECT_EQ(layer_norm(x, Tensor::full({2}, 1, DType::kF32), Tensor()).dtype(), DType::kBF16);
}

TEST(Autocast, a_linear_layer_casts_its_arguments_once_in_its_own_module) {
  // given
  RandomStream random(1, 0);
  Linear layer(3, 2, random);
  layer.set_path("fc1");
  const Tensor input = Tensor::full({1, 3}, 1, DType::kF32);
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  // when it is used twice in a region
  Tensor first, second;
  {
    const Autocast region;
    first = layer(input);
    second = layer(input);
  }
  // then: the input is cast each time, the parameters once, and the parts of linear run on what it was given
  EXPECT_EQ(first.dtype(), DType::kF16);
  EXPECT_THAT(recorder.lines,
              ElementsAre("forward fc1 _to_copy/fp32 self:0 -> out:0", "forward fc1 _to_copy/fp32 self:0 -> out:0",
                          "forward fc1 _to_copy/fp32 self:0 -> out:0", "forward fc1 t/fp16 self:0 -> out:0",
                          "forward fc1 addmm/fp32 self:0 mat1:0 mat2:0 -> out:0",
                          "forward fc1 _to_copy/fp32 self:0 -> out:0", "forward fc1 t/fp16 self:0 -> out:0",
                          "forward fc1 addmm/fp32 self:0 mat1:0 mat2:0 -> out:0"));
  // and the gradient of a parameter comes through its one cast, in fp32
  recorder.lines.clear();
  sum(add(first, second)).backward();
  const auto casts = std::count_if(recorder.lines.begin(), recorder.lines.end(), [](const std::string& line) {
    return line.find("backward fc1 _to_copy_backward") != std::string::npos;
  });
  EXPECT_EQ(casts, 2);
  EXPECT_EQ(layer.weight().grad().dtype(), DType::kF32);
  EXPECT_THAT(layer.weight().grad().to_vector(), ElementsAre(2, 2, 2, 2, 2, 2));
}

// Which tensor an op read: the graph of values stays connected through the cache.
TEST(Autocast, a_cached_cast_is_the_same_value_for_every_op_that_uses_it) {
  struct Weights : Observer {
    std::vector<std::uint64_t> made, used;
    void on_op(const OpCall& call) noexcept override {
      if (call.op == "_to_copy") made.push_back(call.outputs[0].tensor->storage()->generation());
      if (call.op == "mm") used.push_back(call.inputs[1].tensor->storage()->generation());
    }
  } weights;
  const Tensor w = parameter({2, 2}, 0.5), x = Tensor::full({1, 2}, 1, DType::kF16);
  const HookHandle handle = add_observer(weights);
  const Autocast region;
  const Tensor a = matmul(x, w), b = matmul(x, w);
  ASSERT_EQ(weights.made.size(), 1U);
  EXPECT_THAT(weights.used, ElementsAre(weights.made[0], weights.made[0]));
}

std::size_t casts_in(const std::function<void()>& work) {
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  work();
  return static_cast<std::size_t>(
      std::count_if(recorder.lines.begin(), recorder.lines.end(),
                    [](const std::string& line) { return line.find(" _to_copy/") != std::string::npos; }));
}

TEST(Autocast, caches_fp32_leaves_with_gradient_until_the_outermost_region_ends) {
  const Tensor x = Tensor::full({1, 2}, 1, DType::kF16);
  const auto twice = [&](const Tensor& w, const AutocastOptions& options = {}) {
    return casts_in([&] {
      const Autocast outer(options);
      {
        const Autocast inner(options);
        matmul(x, w);
      }
      matmul(x, w);
    });
  };
  const Tensor w = parameter({2, 2}, 1);
  EXPECT_EQ(twice(w), 1U);
  EXPECT_EQ(twice(w), 1U);  // a new region, a new cast
  EXPECT_EQ(twice(w, {.cache = false}), 2U);
  EXPECT_EQ(twice(Tensor::full({2, 2}, 1, DType::kF32)), 2U);  // no gradient
  EXPECT_EQ(twice(t(w)), 2U);                                  // no leaf
  Tensor part = narrow(Tensor::full({3, 2}, 1, DType::kF32), 0, 0, 2);
  EXPECT_EQ(twice(part.set_requires_grad(true)), 2U);  // a view
  EXPECT_EQ(casts_in([&] {
              const Autocast region;
              matmul(x, w);
              clear_autocast_cache();
              matmul(x, w);
            }),
            2U);
}

TEST(Autocast, a_new_parameter_at_a_recycled_address_is_not_taken_for_the_old_one) {
  const Tensor x = Tensor::full({1, 1}, 1, DType::kF16);
  const Autocast region;
  for (int value = 1; value <= 50; ++value) EXPECT_EQ(matmul(x, parameter({1, 1}, value)).item(), value);
}

TEST(Autocast, a_cast_that_backward_used_up_is_made_again) {
  const Tensor w = parameter({1, 1}, 3), x = Tensor::full({1, 1}, 2, DType::kF16);
  const Autocast region;
  for (int i = 0; i < 2; ++i) sum(matmul(x, w)).backward();
  EXPECT_EQ(w.grad().item(), 4);
}

// The fault of older PyTorch, its cure, and what newer PyTorch and Apex do.
TEST(Autocast, a_cast_cached_without_gradients_drops_the_gradient_of_its_parameter_where_that_is_planted) {
  const auto gradient = [](bool clear, const AutocastOptions& options) {
    const Tensor w = parameter({1, 1}, 3), x = Tensor::full({1, 1}, 2, DType::kF16).set_requires_grad(true);
    const Autocast region(options);
    {
      const NoGradGuard evaluation;
      matmul(x, w);
    }
    if (clear) clear_autocast_cache();
    sum(matmul(x, w)).backward();
    return w.grad();
  };
  const AutocastOptions planted{.cache_drops_gradients = true};
  EXPECT_FALSE(gradient(false, planted).defined());
  EXPECT_EQ(gradient(true, planted).item(), 2);
  EXPECT_EQ(gradient(false, {}).item(), 2);
  EXPECT_EQ(gradient(false, {.lists = CastLists::kApex}).item(), 2);
}

TEST(Autocast, a_cast_made_without_gradients_is_reused_with_them_but_for_apex) {
  const Tensor w = parameter({2, 2}, 1), x = Tensor::full({1, 2}, 1, DType::kF16);
  const auto casts = [&](const AutocastOptions& options) {
    return casts_in([&] {
      const Autocast region(options);
      {
        const NoGradGuard evaluation;
        EXPECT_FALSE(matmul(x, w).requires_grad());
        matmul(x, w);
      }
      EXPECT_TRUE(matmul(x, w).requires_grad());
      matmul(x, w);
    });
  };
  EXPECT_EQ(casts({}), 1U);
  EXPECT_EQ(casts({.lists = CastLists::kApex}), 2U);
}

// The cache does not ask for the format.
TEST(Autocast, an_inner_region_of_the_other_format_gets_the_cast_of_the_outer_one) {
  const Tensor w = parameter({2, 2}, 1), x = Tensor::full({2, 2}, 1, DType::kF32);
  const Autocast outer({.dtype = DType::kBF16});
  matmul(x, w);
  const Autocast inner({.dtype = DType::kF16});
  EXPECT_THROW(matmul(x, w), std::invalid_argument);
  clear_autocast_cache();
  EXPECT_EQ(matmul(x, w).dtype(), DType::kF16);
}

TEST(Autocast, a_parameter_written_inside_the_region_is_used_as_it_was) {
  Tensor w = parameter({1, 1}, 3);
  const Tensor x = Tensor::full({1, 1}, 2, DType::kF16);
  const Autocast region;
  const double before = matmul(x, w).item();
  {
    const NoGradGuard no_grad;
    fill_(w, 5);
  }
  EXPECT_EQ(matmul(x, w).item(), before);
}

TEST(Autocast, an_fp32_parameter_receives_the_infinity_of_its_fp16_gradient) {
  const Tensor w = parameter({1, 1}, 1), x = Tensor::full({1, 1}, 300, DType::kF16);
  Tensor loss;
  {
    const Autocast region;
    loss = sum(matmul(x, w));
  }
  backward(loss, 300);
  EXPECT_EQ(w.grad().dtype(), DType::kF32);
  EXPECT_TRUE(std::isinf(w.grad().item()));
}

TEST(Autocast, an_output_that_widens_rounds_no_result_and_casts_no_input) {
  const Tensor x = Tensor::full({1000}, 100, DType::kF16);
  EXPECT_TRUE(std::isinf(sum(x).item()));
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  const Autocast region;
  EXPECT_EQ(sum(x).item(), 1e5);
  EXPECT_EQ(norm(Tensor::full({4}, 6e4, DType::kF16)).item(), 1.2e5);
  EXPECT_THAT(recorder.lines, ElementsAre("forward sum/fp32 self:0 -> out:0", "forward norm/fp32 self:0 -> out:0"));
}

TEST(Autocast, cross_entropy_of_fp16_logits_is_fp32_through_its_parts) {
  const Tensor logits = Tensor::full({1, 2}, 0, DType::kF16);
  const Tensor target = Tensor::from_indices(std::vector<std::int64_t>{1}, {1});
  EXPECT_EQ(cross_entropy(logits, target).dtype(), DType::kF16);
  const Autocast region;
  const Tensor loss = cross_entropy(logits, target);
  EXPECT_EQ(loss.dtype(), DType::kF32);
  EXPECT_EQ(static_cast<float>(loss.item()), std::log(2.0F));
}

TEST(Autocast, what_it_computes_with_bf16_is_what_explicit_casts_compute) {
  const Tensor x = Tensor::full({2, 3}, 1.2345, DType::kF32), w = Tensor::full({3, 2}, 0.9876, DType::kF32);
  const Tensor by_hand = matmul(to(x, DType::kBF16), to(w, DType::kBF16));
  const Autocast region({.dtype = DType::kBF16});
  const Tensor cast = matmul(x, w);
  EXPECT_EQ(cast.dtype(), DType::kBF16);
  EXPECT_EQ(cast.to_vector(), by_hand.to_vector());
}

TEST(Autocast, an_op_that_has_no_row_of_the_right_kind_is_a_mistake_of_the_engine) {
  const Tensor x = Tensor::full({1}, 1, DType::kF16);
  const Autocast region;
  const auto same = [](const Tensor& y) { return y; };
  EXPECT_THROW(amp::run("no_such_op", same, x), std::logic_error);
  EXPECT_THROW(amp::run("sum", same, x), std::logic_error);
  EXPECT_EQ(amp::output_dtype("matmul", x), DType::kF16) << "no row that widens the result";
}

TEST(Autocast, bans_binary_cross_entropy_for_cuda_but_not_where_it_is_off) {
  const Tensor p = Tensor::full({2}, 0.5, DType::kF32);
  const auto loss = [&] { return binary_cross_entropy(p, p); };
  const Autocast region;
  EXPECT_THAT(loss, ::testing::ThrowsMessage<std::invalid_argument>(
                        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
                        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
                        "In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits"
                        "\nor torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
                        "safe to autocast."));
  EXPECT_EQ(binary_cross_entropy_with_logits(p, p).dtype(), DType::kF32) << "what it advises";
  const Autocast off({.enabled = false});
  EXPECT_EQ(loss().dtype(), DType::kF32);
}

TEST(Autocast, takes_binary_cross_entropy_in_fp32_on_the_cpu) {
  const Tensor p = Tensor::full({2}, 0.5, DType::kBF16);
  const Autocast region({.device = AutocastDevice::kCpu});
  EXPECT_EQ(binary_cross_entropy(p, p).dtype(), DType::kF32);
}

// Apex asks for the formats.
TEST(Autocast, of_apex_bans_binary_cross_entropy_of_fp16_alone) {
  const auto of = [](DType dtype) { return Tensor::full({2}, 0.5, dtype); };
  const Autocast region({.lists = CastLists::kApex});
  EXPECT_EQ(binary_cross_entropy(of(DType::kF32), of(DType::kF32)).dtype(), DType::kF32);
  EXPECT_THAT([&] { binary_cross_entropy(of(DType::kF16), of(DType::kF16)); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  ::testing::HasSubstr("amp does not work out-of-the-box with `F.binary_cross_entropy`")));
}

TEST(Autocast, misuse_is_refused_as_it_is_outside) {
  const Autocast region;
  EXPECT_THROW(matmul(Tensor(), Tensor()), std::invalid_argument);
  EXPECT_THROW(sum(Tensor()), std::invalid_argument);
  EXPECT_THROW(softmax(Tensor::from_indices(std::vector<std::int64_t>{1}, {1}), 0), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine::testing
