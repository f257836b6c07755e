// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "nanhunt/engine/optimizer.h"
#include "tests/engine/event_log.h"
#include "tests/engine/ops/op_recorder.h"

namespace nanhunt::engine {
namespace {

using testing::bytes_of;
using testing::EventLog;
using Lines = std::vector<std::string>;

struct Pair {
  Tensor a, b;
  explicit Pair(DType dtype = DType::kF32)
      : a(Tensor::full({3}, 1, dtype).set_requires_grad(true)),
        b(Tensor::full({2, 2}, -1, dtype).set_requires_grad(true)) {}
  std::vector<NamedTensor> named() const { return {{"net.a", a}, {"net.b", b}}; }
  void set_grads(double value) {
    a.set_grad(Tensor::full({3}, value, a.dtype()));
    b.set_grad(Tensor::full({2, 2}, -value, b.dtype()));
  }
};

TEST(ForLoopAdam, runs_the_ops_of_an_eager_loop_in_phase_optimizer_under_the_parameter_path) {
  Pair pair(DType::kF16);
  auto optimizer = make_optimizer({{"net.a", pair.a}}, {.weight_decay = 0});
  pair.set_grads(0.5);
  EventLog log;
  const HookHandle handle = add_observer(log);
  optimizer->step();
  EXPECT_EQ(log.lines, (Lines{"op optimizer net.a lerp_", "op optimizer net.a mul_", "op optimizer net.a addcmul_",
                              "op optimizer net.a sqrt", "op optimizer net.a div", "op optimizer net.a add_",
                              "op optimizer net.a addcdiv_", "mark parameter net.a", "mark state net.a.exp_avg",
                              "mark state net.a.exp_avg_sq"}));
  EXPECT_EQ(current_phase(), Phase::kForward);
  EXPECT_EQ(current_module(), "");
}

TEST(ForLoopAdamW, decays_the_weight_first) {
  Pair pair;
  auto optimizer = make_optimizer({{"net.a", pair.a}}, {.algorithm = "adamw", .weight_decay = 0.1});
  pair.set_grads(0.5);
  EventLog log;
  const HookHandle handle = add_observer(log);
  optimizer->step();
  EXPECT_EQ(log.starting_with("op").front(), "op optimizer net.a mul_");
  EXPECT_EQ(log.starting_with("op").size(), 8u);
}

TEST(ForLoopSgd, observes_momentum_and_update) {
  Pair pair;
  auto optimizer = make_optimizer({{"net.a", pair.a}}, {.algorithm = "sgd", .momentum = 0.9});
  pair.set_grads(0.5);
  EventLog log;
  const HookHandle handle = add_observer(log);
  optimizer->step();
  EXPECT_EQ(log.lines, (Lines{"op optimizer net.a mul_", "op optimizer net.a add_", "op optimizer net.a add_",
                              "mark parameter net.a", "mark state net.a.momentum_buffer"}));
}

TEST(Fp32Masters, are_observed_from_gradient_cast_to_copy_back) {
  Pair pair(DType::kBF16);
  auto optimizer = make_optimizer({{"net.a", pair.a}}, {.algorithm = "sgd", .fp32_masters = true});
  pair.set_grads(0.5);
  EventLog log;
  const HookHandle handle = add_observer(log);
  optimizer->step();
  EXPECT_EQ(log.lines, (Lines{"op optimizer net.a _to_copy", "op optimizer net.a add_", "op optimizer net.a copy_",
                              "mark parameter net.a", "mark state net.a.master"}));
}

TEST(Fp32Masters, are_made_for_16_bit_parameters_only) {
  Tensor wide = Tensor::zeros({1}, DType::kF32), narrow = Tensor::zeros({1}, DType::kF16);
  auto optimizer = make_optimizer({{"w", wide}, {"n", narrow}}, {.algorithm = "sgd", .fp32_masters = true});
  const auto state = optimizer->named_state();
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state[0].path, "n.master");
  EXPECT_EQ(state[0].tensor.dtype(), DType::kF32);
}

TEST(FusedAdam, is_one_op_that_names_what_it_overwrites) {
  Pair pair;
  auto optimizer = make_optimizer(
      {{"net.a", pair.a}}, {.algorithm = "adamw", .lr = 0.5, .weight_decay = 0.25, .impl = OptimizerImpl::kFused});
  pair.set_grads(0.5);
  testing::OpRecorder recorder;
  const HookHandle handle = add_observer(recorder);
  optimizer->step();
  optimizer->step();
  ASSERT_EQ(recorder.lines.size(), 2u);
  EXPECT_EQ(recorder.lines[1],
            "optimizer net.a _fused_adamw_/fp32 self:1(overwritten) grad:0 exp_avg:1(overwritten) "
            "exp_avg_sq:1(overwritten) -> self:2 exp_avg:2 exp_avg_sq:2 "
            "{lr=0.5 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.25 step=2}");
}

TEST(FusedSgd, is_one_op_with_and_without_momentum) {
  for (double momentum : {0.0, 0.5}) {
    Pair pair;
    auto optimizer =
        make_optimizer({{"net.a", pair.a}}, {.algorithm = "sgd", .momentum = momentum, .impl = OptimizerImpl::kFused});
    pair.set_grads(0.5);
    EventLog log;
    const HookHandle handle = add_observer(log);
    optimizer->step();
    EXPECT_EQ(log.starting_with("op"), Lines{"op optimizer net.a _fused_sgd_"});
  }
}

TEST(Optimizer, leaves_parameters_without_gradient_and_their_step_count_alone) {
  // given two Adam parameters of which b gets no gradient at first
  Pair pair;
  auto optimizer = make_optimizer(pair.named(), {.lr = 0.1});
  pair.a.set_grad(Tensor::full({3}, 1, DType::kF32));
  optimizer->step();
  optimizer->step();
  EXPECT_EQ(pair.b.to_vector(), (std::vector<double>{-1, -1, -1, -1}));
  // when it gets its first one, it moves as in a first step: by lr
  pair.b.set_grad(Tensor::full({2, 2}, 0.01, DType::kF32));
  optimizer->step();
  EXPECT_NEAR(pair.b.at(0), -1.1, 1e-6);
  EXPECT_EQ(optimizer->snapshot().counters, (std::vector<std::int64_t>{3, 1}));
}

TEST(Optimizer, zero_grad_drops_every_gradient) {
  Pair pair;
  auto optimizer = make_optimizer(pair.named(), {});
  pair.set_grads(1);
  optimizer->zero_grad();
  EXPECT_FALSE(pair.a.grad().defined());
  EXPECT_FALSE(pair.b.grad().defined());
}

TEST(Optimizer, passes_non_finite_gradients_on_as_they_are) {
  // harm must stay visible: an optimizer neither hides nor stops at a NaN
  for (OptimizerImpl impl : {OptimizerImpl::kForLoop, OptimizerImpl::kFused}) {
    for (const char* algorithm : {"sgd", "adam", "adamw"}) {
      Pair pair;
      auto optimizer = make_optimizer({{"net.a", pair.a}}, {.algorithm = algorithm, .momentum = 0, .impl = impl});
      constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
      pair.a.set_grad(Tensor::from_values(std::vector<double>{1, kNan, 1}, {3}, DType::kF32));
      optimizer->step();
      EXPECT_FALSE(std::isnan(pair.a.at(0)));
      EXPECT_TRUE(std::isnan(pair.a.at(1)));
      EXPECT_FALSE(std::isnan(pair.a.at(2)));
    }
  }
}

class SnapshotOf : public ::testing::TestWithParam<OptimizerOptions> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, SnapshotOf,
                         ::testing::Values(OptimizerOptions{.algorithm = "sgd", .momentum = 0.9},
                                           OptimizerOptions{.algorithm = "adam"},
                                           OptimizerOptions{.algorithm = "adam", .fp32_masters = true},
                                           OptimizerOptions{.algorithm = "adamw",
                                                            .weight_decay = 0.1,
                                                            .impl = OptimizerImpl::kFused,
                                                            .fp32_masters = true}));

TEST_P(SnapshotOf, state_and_counters_goes_on_exactly_from_there) {
  Pair pair(DType::kF16);
  auto optimizer = make_optimizer(pair.named(), GetParam());
  auto run = [&](int first, int last) {
    for (int i = first; i <= last; ++i) {
      pair.set_grads(0.01 * i);
      optimizer->step();
    }
  };
  run(1, 3);
  // given a snapshot, which later steps must not touch
  const Optimizer::Snapshot snapshot = optimizer->snapshot();
  const Tensor a = pair.a.clone(), b = pair.b.clone();
  run(4, 6);
  const auto parameters = bytes_of(pair.named()), state = bytes_of(optimizer->named_state());
  // when everything is put back and run again
  optimizer->restore(snapshot);
  pair.a.copy_from(a);
  pair.b.copy_from(b);
  EXPECT_NE(bytes_of(optimizer->named_state()), state);
  run(4, 6);
  // then not one bit differs
  EXPECT_EQ(bytes_of(pair.named()), parameters);
  EXPECT_EQ(bytes_of(optimizer->named_state()), state);
}

TEST(Optimizer, refuses_a_snapshot_of_another_optimizer) {
  Pair pair;
  auto adam = make_optimizer(pair.named(), {});
  auto sgd = make_optimizer(pair.named(), {.algorithm = "sgd"});
  EXPECT_THROW(adam->restore(sgd->snapshot()), std::invalid_argument);
}

TEST(MakeOptimizer, refuses_options_that_make_no_sense) {
  const auto expect_refused = [](const OptimizerOptions& options) {
    EXPECT_THROW(make_optimizer(Pair().named(), options), std::invalid_argument);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  expect_refused({.algorithm = "lion"});
  expect_refused({.lr = -1});
  expect_refused({.lr = kNan});
  expect_refused({.beta1 = 1});
  expect_refused({.beta2 = -0.1});
  expect_refused({.eps = kNan});
  expect_refused({.weight_decay = -1});
  expect_refused({.algorithm = "sgd", .momentum = 1});
  expect_refused({.algorithm = "sgd", .nesterov = true});
  EXPECT_THROW(make_optimizer({{"ids", Tensor::zeros({1}, DType::kI64)}}, {}), std::invalid_argument);
  EXPECT_THROW(make_optimizer({{"none", Tensor()}}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine
