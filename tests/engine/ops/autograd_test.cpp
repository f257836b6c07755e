// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/autograd.h"

#include <gmock/gmock.h>

#include "nanhunt/engine/ops.h"
#include "tests/engine/ops/op_recorder.h"
#include "tests/support/grad_check.h"

namespace nanhunt::engine::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tensor parameter(double value, Shape sizes = {1}, DType dtype = DType::kF32) {
  return Tensor::full(std::move(sizes), value, dtype).set_requires_grad(true);
}

template <typename F>
void expect_throws(F f, const std::string& text) {
  EXPECT_THAT(f, ThrowsMessage<std::invalid_argument>(HasSubstr(text)));
}

TEST(Autograd, gradients_accumulate_and_the_seed_scales_them) {
  Tensor x = parameter(3);
  backward(mul(x, x), 65536);
  EXPECT_EQ(x.grad().item(), 6 * 65536);
  backward(mul(x, x));
  EXPECT_EQ(x.grad().item(), 6 * 65536 + 6);
}

TEST(Autograd, a_seed_that_the_loss_format_cannot_hold_is_rounded_to_it) {
  Tensor x = parameter(1, {1}, DType::kF16);
  backward(mul(x, 1.0), 1e6);
  EXPECT_EQ(x.grad().item(), std::numeric_limits<double>::infinity());
}

TEST(Autograd, the_loss_may_be_a_leaf) {
  Tensor x = parameter(3);
  x.backward();
  EXPECT_EQ(x.grad().item(), 1);
}

TEST(Autograd, functional_grad_touches_no_grad_and_leaves_unreached_undefined) {
  Tensor x = parameter(3), unused = parameter(1);
  const Tensor h = mul(x, 2.0);
  const std::vector<Tensor> gradients = grad(mul(h, h), {x, h, unused});
  EXPECT_EQ(gradients[0].item(), 24);
  EXPECT_EQ(gradients[1].item(), 12);
  EXPECT_FALSE(gradients[2].defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Autograd, functional_grad_runs_only_what_leads_to_the_wanted) {
  Tensor x = parameter(3), y = parameter(2);
  const Tensor loss = mul(exp(x), tanh(y));
  OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  grad(loss, {y});
  EXPECT_THAT(recorder.lines, ElementsAre(HasSubstr("mul_backward"), HasSubstr("tanh_backward")));
}

TEST(Autograd, two_leaves_never_share_the_memory_of_their_gradients) {
  Tensor x = parameter(3), y = parameter(2);
  backward(add(x, y));
  EXPECT_NE(x.grad().storage(), y.grad().storage());
}

TEST(Autograd, the_gradient_of_a_linear_weight_is_dense) {
  Tensor w = parameter(1, {4, 3}), x = parameter(1, {2, 3});
  sum(linear(x, w, Tensor())).backward();
  EXPECT_TRUE(w.grad().is_contiguous());
  EXPECT_TRUE(x.grad().is_contiguous());
}

TEST(Autograd, no_grad_records_nothing_and_the_guard_restores) {
  Tensor x = parameter(3);
  {
    const NoGradGuard no_grad;
    EXPECT_FALSE(grad_enabled());
    EXPECT_FALSE(exp(x).requires_grad());
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_TRUE(exp(x).requires_grad());
}

TEST(Autograd, gradients_have_the_format_of_their_tensor) {
  // given: a 16-bit activation and an fp32 parameter meet
  Tensor half = parameter(2, {2}, DType::kF16), full = parameter(3, {2}, DType::kF32);
  const Tensor out = mul(half, full);
  EXPECT_EQ(out.dtype(), DType::kF32);
  sum(out).backward();
  EXPECT_EQ(half.grad().dtype(), DType::kF16);
  EXPECT_EQ(full.grad().dtype(), DType::kF32);
}

TEST(Autograd, a_conversion_sends_the_gradient_back_converted) {
  Tensor x = parameter(1, {1}, DType::kF16);
  backward(mul(to(x, DType::kF32), 1e-8));
  EXPECT_EQ(x.grad().dtype(), DType::kF16);
  EXPECT_EQ(x.grad().item(), 0);  // 1e-8 is below half of fp16's smallest number
}

TEST(Autograd, a_used_graph_throws_and_says_what_to_do) {
  Tensor x = parameter(3);
  const Tensor h = exp(x);
  const Tensor first = mul(h, 2.0), second = mul(h, 3.0);
  first.backward();
  expect_throws([&] { first.backward(); }, "'mul' already ran backward: run the forward pass again");
  expect_throws([&] { second.backward(); }, "'exp' already ran backward");
  EXPECT_NEAR(x.grad().item(), 2 * std::exp(3.0), 1e-5);  // the failed passes left nothing behind
}

TEST(Autograd, a_saved_value_written_in_place_throws_and_says_which) {
  Tensor x = parameter(3);
  Tensor y = exp(x);
  {
    const NoGradGuard no_grad;
    Tensor alias = y.detach();
    add_(alias, 1.0);
  }
  expect_throws(
      [&] { y.backward(); },
      "[exp_backward] expected saved 'result' at version 0, got version 1: it was written in place after exp");
}

TEST(Autograd, writing_a_value_that_backward_does_not_need_is_fine) {
  // given: mul saves only what the wanted gradient needs
  Tensor x = parameter(3);
  Tensor constant = Tensor::full({1}, 2, DType::kF32);
  const Tensor y = add(mul(x, constant), constant);
  {
    const NoGradGuard no_grad;
    Tensor alias = x.detach();
    fill_(alias, 7);
  }
  y.backward();
  EXPECT_EQ(x.grad().item(), 2);
}

TEST(Autograd, misuse_says_what_was_expected_and_what_came) {
  expect_throws([] { backward(Tensor()); }, "[backward] expected a tensor for loss, got an undefined tensor");
  expect_throws([] { backward(parameter(1, {2})); }, "[backward] expected a loss of one element, got fp32 [2]");
  expect_throws([] { backward(Tensor::zeros({1}, DType::kF32)); }, "depends on a tensor with requires_grad");
  expect_throws([] { grad(parameter(1), {Tensor::zeros({1}, DType::kF32)}); }, "[grad] expected wrt tensors");
  expect_throws([] { grad(parameter(1), {Tensor()}); }, "[grad] expected a tensor for wrt");
}

TEST(Autograd, a_graph_of_100000_nodes_runs_and_goes_without_recursion) {
  // given
  Tensor x = parameter(1);
  const auto build = [&x] {
    Tensor y = mul(x, 1.0);
    for (int i = 0; i < 100000; ++i) y = add(y, x);
    return y;
  };
  // when: once with backward, once dropped unused
  build().backward();
  build();
  // then
  EXPECT_EQ(x.grad().item(), 100001);
}

TEST(Autograd, only_what_backward_needs_stays_in_memory) {
  // given: an activation that nothing saves
  struct Released : Observer {
    int count = 0;
    void on_storage_released(std::uint64_t) noexcept override { ++count; }
  } released;
  Tensor x = parameter(3);
  const HookHandle handle = add_observer(released);
  Tensor h = add(x, 1.0);
  // when
  h = add(h, 1.0);
  // then
  EXPECT_EQ(released.count, 1);
}

TEST(Autograd, the_same_graph_gives_the_same_bits_twice) {
  const auto run = [] {
    Tensor x = spread_tensor({64, 33}, -1, 1, DType::kF32).set_requires_grad(true);
    Tensor w = spread_tensor({17, 33}, -1, 1, DType::kF32).set_requires_grad(true);
    Tensor b = spread_tensor({17}, -1, 1, DType::kF32).set_requires_grad(true);
    const Tensor target = Tensor::from_indices(std::vector<std::int64_t>(64, 3), {64});
    cross_entropy(relu(linear(x, w, b)), target).backward();
    std::vector<double> bits = w.grad().to_vector();
    const std::vector<double> more = b.grad().to_vector();
    bits.insert(bits.end(), more.begin(), more.end());
    return bits;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace nanhunt::engine::testing
