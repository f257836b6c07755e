// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/autograd.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"

namespace nanhunt::hooks {
namespace {

using engine::Tensor;

// Digits in pure fp16 with Adam: pixels that are never set give weights without gradient, so that 0 / (0 + eps)
// is 0/0 where eps rounds to 0.
std::unique_ptr<engine::Trainer> make_trainer(const std::string& fix) {
  engine::MlpOptions model;
  model.sizes = {64, 16, 10};
  model.dtype = DType::kF16;
  auto mlp = std::make_unique<engine::Mlp>(model);
  engine::OptimizerOptions options{.algorithm = "adam", .lr = 1e-3, .eps = 1e-8};
  if (fix == "fp32-masters") options.fp32_masters = true;
  if (fix == "eps-raised") options.eps = 1e-4;
  auto optimizer = engine::make_optimizer(mlp->named_parameters(), options);
  return std::make_unique<engine::Trainer>(
      std::move(mlp), std::move(optimizer), engine::digits_train_batches(32, 1, DType::kF16),
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
}

const std::vector<hunt::Fix> kFixes = {{"fp32-masters", "fp32 master weights and optimizer state"},
                                       {"eps-raised", "eps 1e-4"}};

TEST(EngineReplay, the_unfixed_run_is_seen_to_fail) {
  auto replay = make_engine_replay(make_trainer, kFixes);
  const ExperimentRecord outcome = replay->try_fix({"", "nothing changed"}, 0, hunt::kFurtherSteps);
  EXPECT_FALSE(outcome.finite);
  EXPECT_EQ(outcome.further_steps, 0u);
}

TEST(EngineReplay, fp32_masters_cure_the_run) {
  auto replay = make_engine_replay(make_trainer, kFixes);
  const ExperimentRecord outcome = replay->try_fix(kFixes[0], 0, hunt::kFurtherSteps);
  EXPECT_TRUE(outcome.finite);
  EXPECT_EQ(outcome.further_steps, hunt::kFurtherSteps);
  EXPECT_GE(outcome.update_factor, 1);
  EXPECT_LE(outcome.update_factor, 1.01);
  EXPECT_LT(outcome.loss_after, outcome.loss_before);
  EXPECT_FALSE(outcome.verified);  // verify_fixes says so
}

TEST(EngineReplay, a_raised_eps_stops_the_nan_but_steps_too_far) {
  auto replay = make_engine_replay(make_trainer, kFixes);
  const ExperimentRecord outcome = replay->try_fix(kFixes[1], 0, hunt::kFurtherSteps);
  EXPECT_TRUE(outcome.finite);
  EXPECT_GT(outcome.update_factor, hunt::kUpdateFactorBound);
}

TEST(EngineReplay, equal_trials_give_equal_outcomes) {
  auto replay = make_engine_replay(make_trainer, kFixes);
  EXPECT_EQ(replay->try_fix(kFixes[0], 3, 5), replay->try_fix(kFixes[0], 3, 5));
}

TEST(EngineReplay, nobody_sees_the_replay) {
  struct Counter final : engine::Observer {
    void on_op(const engine::OpCall&) noexcept override { ++ops; }
    void on_storage_released(std::uint64_t) noexcept override { ++releases; }
    int ops = 0, releases = 0;
  } counter;
  auto replay = make_engine_replay(make_trainer, kFixes);
  const engine::HookHandle handle = engine::add_observer(counter);
  replay->try_fix(kFixes[0], 0, 2);
  EXPECT_EQ(counter.ops, 0);
  EXPECT_EQ(counter.releases, 0);
}

// The optimizer holds parameters that the loss does not depend on: they never get a gradient.
std::unique_ptr<engine::Trainer> make_trainer_that_moves_nothing(const std::string&) {
  engine::MlpOptions model;
  model.sizes = {64, 16, 10};
  const engine::Mlp other(model);
  auto optimizer = engine::make_optimizer(other.named_parameters(), {.algorithm = "sgd", .lr = 1e-3});
  return std::make_unique<engine::Trainer>(
      std::make_unique<engine::Mlp>(model), std::move(optimizer), engine::digits_train_batches(32, 1, DType::kF32),
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
}

class EngineTrials : public ::testing::Test {
 protected:
  hunt::Trials verify(TrainerFactory make, std::uint32_t step) {
    auto recorder = record::make_recorder(
        {}, std::make_unique<record::testing::ScriptedWriter>(std::make_shared<record::testing::WriterScript>()));
    EXPECT_TRUE(recorder) << recorder.status().message();
    auto replay = make_engine_replay(std::move(make), {kFixes[0]});
    return hunt::verify_fixes(*replay, step, **recorder);
  }
};

TEST_F(EngineTrials, a_fix_is_not_verified_by_a_run_in_which_no_update_could_be_compared) {
  const hunt::Trials trials = verify(make_trainer_that_moves_nothing, 0);
  ASSERT_EQ(trials.experiments.size(), 1u);
  EXPECT_TRUE(trials.experiments[0].finite);
  EXPECT_EQ(trials.experiments[0].further_steps, hunt::kFurtherSteps);
  EXPECT_EQ(trials.experiments[0].update_factor, 0);
  EXPECT_FALSE(trials.experiments[0].verified);
}

TEST_F(EngineTrials, a_fix_whose_updates_are_right_is_verified) {
  const hunt::Trials trials = verify(make_trainer, 0);
  ASSERT_EQ(trials.experiments.size(), 1u);
  EXPECT_TRUE(trials.experiments[0].verified);
}

TEST_F(EngineTrials, an_engine_that_throws_in_the_middle_of_training_breaks_the_trial_off) {
  // given a batch at step 5 of which the rows no longer fit the model
  const auto make = [](const std::string& fix) {
    auto whole = engine::digits_train_batches(32, 1, DType::kF32);
    engine::MlpOptions model;
    model.sizes = {64, 16, 10};
    auto mlp = std::make_unique<engine::Mlp>(model);
    auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "sgd", .lr = 1e-3});
    return std::make_unique<engine::Trainer>(
        std::move(mlp), std::move(optimizer),
        [whole, fix](std::uint32_t step) {
          engine::Batch batch = whole(step);
          if (step == 5 && !fix.empty()) batch.inputs = Tensor::zeros({32, 63}, DType::kF32);
          return batch;
        },
        [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
  };
  const hunt::Trials trials = verify(make, 3);
  EXPECT_TRUE(trials.experiments.empty());
  ASSERT_EQ(trials.broken_off.size(), 1u);
  EXPECT_TRUE(trials.broken_off[0].starts_with("fp32-masters: [")) << trials.broken_off[0];
}

// fp32 weights under autocast, with a loss scale that starts too high; `loss` sees the logits.
TrainerFactory scaled_trainers(engine::LossFunction loss) {
  return [loss](const std::string&) {
    engine::MlpOptions model;
    model.sizes = {64, 16, 10};
    auto mlp = std::make_unique<engine::Mlp>(model);
    auto optimizer = engine::make_optimizer(mlp->named_parameters(), {.algorithm = "adam", .lr = 1e-2});
    engine::TrainerOptions options;
    options.autocast = engine::AutocastOptions{};
    options.scaler = engine::GradScalerOptions{.init_scale = 0x1p24};
    return std::make_unique<engine::Trainer>(std::move(mlp), std::move(optimizer),
                                             engine::digits_train_batches(32, 1, DType::kF32), loss, options);
  };
}

TEST(EngineReplay, steps_that_the_loss_scaler_skips_are_neither_failures_nor_training) {
  // given
  const TrainerFactory make = scaled_trainers(
      [](const Tensor& output, const engine::Batch& batch) { return engine::cross_entropy(output, batch.targets); });
  auto calibrating = make("");
  ASSERT_TRUE(calibrating->step().skipped);
  // when
  const ExperimentRecord outcome = make_engine_replay(make, kFixes)->try_fix(kFixes[0], 0, hunt::kFurtherSteps);
  // then: as many steps trained as were asked for, and what was compared agrees
  EXPECT_TRUE(outcome.finite);
  EXPECT_EQ(outcome.further_steps, hunt::kFurtherSteps);
  EXPECT_GE(outcome.update_factor, 1);
  EXPECT_LE(outcome.update_factor, 1.01);
}

TEST(EngineReplay, gradients_that_no_scale_makes_finite_are_a_failure_though_every_step_is_skipped) {
  // given: the derivative of sqrt at 0
  const TrainerFactory make = scaled_trainers([](const Tensor& output, const engine::Batch& batch) {
    const Tensor lost = engine::sum(engine::sqrt(engine::mul(output, 0.0)));
    return engine::add(engine::cross_entropy(output, batch.targets), lost);
  });
  const ExperimentRecord outcome = make_engine_replay(make, kFixes)->try_fix(kFixes[0], 2, hunt::kFurtherSteps);
  EXPECT_FALSE(outcome.finite);
  EXPECT_EQ(outcome.further_steps, 0u);
}

TEST(EngineReplay, what_the_factory_throws_reaches_the_caller) {
  auto replay = make_engine_replay(
      [](const std::string&) -> std::unique_ptr<engine::Trainer> { throw std::invalid_argument("no such fix"); },
      kFixes);
  EXPECT_THROW(replay->try_fix(kFixes[0], 0, 1), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::hooks
