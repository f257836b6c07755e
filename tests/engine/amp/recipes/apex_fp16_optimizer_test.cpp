// SPDX-License-Identifier: Apache-2.0
// Apex's FP16_Optimizer: masters, their gradients on demand, its own clip, the state.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

struct Wrapped {
  explicit Wrapped(const ApexFp16OptimizerOptions& options) : wrapper(options) {}
  void backward(double slope) {
    wrapper.backward(sum(mul(to(half, DType::kF32), slope)), *optimizer);
    single.set_grad(Tensor::full({2}, slope * wrapper.get_scale(), DType::kF32));
  }

  Tensor half = Tensor::zeros({2}, DType::kF16).set_requires_grad(true);
  Tensor single = Tensor::zeros({2}, DType::kF32).set_requires_grad(true);
  std::unique_ptr<Optimizer> optimizer =
      make_optimizer({{"half", half}, {"single", single}}, {.algorithm = "sgd", .lr = 1, .fp32_masters = true});
  ApexFp16Optimizer wrapper;
};

ApexFp16OptimizerOptions dynamic(double scale) {
  return {.dynamic_loss_scale = ApexLegacyScalerOptions{.init_scale = scale}};
}

TEST(ApexFp16Optimizer, copies_gradients_to_masters_when_it_is_told_to_and_divides_them) {
  Wrapped run({.static_loss_scale = 128});
  // when two losses have run
  run.wrapper.backward(sum(mul(to(run.half, DType::kF32), 1)), *run.optimizer);
  run.backward(0.5);
  EXPECT_FALSE(run.optimizer->master(0).grad().defined());
  EXPECT_EQ(run.half.grad().at(0), 128 * 1.5);
  // then one update takes their sum, and the model's stay scaled
  run.wrapper.update_master_grads(*run.optimizer);
  EXPECT_EQ(run.optimizer->gradient(0).at(0), 1.5);
  EXPECT_EQ(run.half.grad().at(0), 128 * 1.5);
  EXPECT_EQ(run.single.grad().at(0), 0.5) << "an fp32 parameter is its own master";
  EXPECT_TRUE(run.wrapper.step(*run.optimizer));
  EXPECT_EQ(run.half.at(0), -1.5);
}

TEST(ApexFp16Optimizer, leaves_masters_alone_after_an_overflow_and_says_so_with_minus_1) {
  Wrapped run(dynamic(1024));
  run.backward(1);
  run.wrapper.update_master_grads(*run.optimizer);
  EXPECT_NEAR(run.wrapper.clip_master_grads(*run.optimizer, 1), 2, 1e-6);
  EXPECT_NEAR(run.optimizer->gradient(0).at(0), 0.5, 1e-6);
  EXPECT_TRUE(run.wrapper.step(*run.optimizer));
  // when the next gradients overflow
  run.half.set_grad({});
  run.backward(HUGE_VAL);
  run.wrapper.update_master_grads(*run.optimizer);
  // then
  EXPECT_TRUE(run.wrapper.overflow());
  EXPECT_NEAR(run.optimizer->gradient(0).at(0), 0.5, 1e-6) << "those of before";
  EXPECT_TRUE(std::isinf(run.single.grad().at(0)));
  EXPECT_EQ(run.wrapper.clip_master_grads(*run.optimizer, 1), -1);
  EXPECT_FALSE(run.wrapper.step(*run.optimizer));
  EXPECT_EQ(run.wrapper.message(), "OVERFLOW! Skipping step. Attempted loss scale: 1024.0, reducing to 512.0");
  EXPECT_NEAR(run.half.at(0), -0.5, 1e-3);
}

TEST(ApexFp16Optimizer, does_not_look_under_a_static_scale) {
  Wrapped run({.static_loss_scale = 128});
  run.backward(HUGE_VAL);
  run.wrapper.update_master_grads(*run.optimizer);
  EXPECT_FALSE(run.wrapper.overflow());
  EXPECT_TRUE(run.wrapper.step(*run.optimizer));
  EXPECT_TRUE(std::isinf(run.half.at(0)));
  EXPECT_EQ(run.wrapper.get_scale(), 128);
}

TEST(ApexFp16Optimizer, steps_with_a_closure_as_with_the_calls_that_it_makes) {
  const auto calls = [](Wrapped& run) {
    run.optimizer->zero_grad();
    const Tensor loss = sum(mul(to(run.half, DType::kF32), 0.5));
    run.wrapper.backward(loss, *run.optimizer);
    run.wrapper.update_master_grads(*run.optimizer);
    return loss;
  };
  Wrapped by_hand({.static_loss_scale = 128}), by_closure({.static_loss_scale = 128});
  for (int step = 0; step < 3; ++step) {
    const double loss = calls(by_hand).item();
    by_hand.wrapper.step(*by_hand.optimizer);
    int runs = 0;
    const Tensor returned = by_closure.wrapper.step(*by_closure.optimizer, [&] {
      ++runs;
      return calls(by_closure);
    });
    EXPECT_EQ(returned.item(), loss);
    EXPECT_EQ(runs, 1);
  }
  EXPECT_EQ(by_closure.half.to_vector(), by_hand.half.to_vector());
  EXPECT_EQ(by_closure.half.at(0), -1.5);
}

TEST(ApexFp16Optimizer, refuses_a_closure_under_a_dynamic_scale) {
  Wrapped run(dynamic(1024));
  bool ran = false;
  const auto closure = [&] {
    ran = true;
    return Tensor();
  };
  try {
    run.wrapper.step(*run.optimizer, closure);
    FAIL();
  } catch (const std::invalid_argument& refused) {
    EXPECT_STREQ(refused.what(), "Using step with a closure is currently not compatible with dynamic loss scaling.");
  }
  EXPECT_FALSE(ran);
}

TEST(ApexFp16Optimizer, has_masters_and_scaler_in_its_state) {
  Wrapped run(dynamic(1024)), other(dynamic(64));
  run.backward(0x1p-13);
  run.wrapper.update_master_grads(*run.optimizer);
  run.wrapper.step(*run.optimizer);
  run.wrapper.update();
  other.optimizer->restore(run.optimizer->snapshot());
  other.wrapper.load(run.wrapper.saved());
  EXPECT_EQ(other.optimizer->master(0).at(0), -0x1p-13);
  EXPECT_EQ(other.wrapper.get_scale(), 1024);
  EXPECT_EQ(other.wrapper.saved(), run.wrapper.saved());
}

TEST(ApexFp16Optimizer, converts_the_network_but_for_batch_norms_and_lets_outputs_be_fp16) {
  const TrainingSetup setup = apex_fp16_optimizer(fp32_setup());
  EXPECT_EQ(dtype_of(*setup.model, "conv1.weight"), DType::kF16);
  EXPECT_EQ(dtype_of(*setup.model, "bn1.running_var"), DType::kF32);
  const Tensor images = make_digits_batch(digits_test_ids(), DType::kF32).inputs;
  EXPECT_EQ((*setup.model)(images).dtype(), DType::kF16);
}

TEST(ApexFp16Optimizer, in_a_trainer_clips_masters_and_calibrates_its_scale) {
  TrainingSetup setup = apex_fp16_optimizer(fp32_setup(), dynamic(0x1p20));
  setup.options.clip_norm = 0.25;
  const auto trainer = train_on_digits(std::move(setup));
  double norm_sq = 0;
  trainer->set_boundary_callback([&](Trainer& at) {
    norm_sq = 0;
    for (const auto& [path, tensor] : at.optimizer().with_gradients()) {
      for (double g : tensor.grad().to_vector()) norm_sq += g * g;
    }
  });
  EventLog log;
  const HookHandle handle = add_observer(log);
  StepResult result = trainer->step();
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.scale, 0x1p20);
  EXPECT_TRUE(log.starting_with("scaler clip").empty());
  for (int i = 0; i < 12 && result.skipped; ++i) result = trainer->step();
  EXPECT_FALSE(result.skipped);
  EXPECT_LE(std::sqrt(norm_sq), 0.2501);
  EXPECT_LT(log.index_of("scaler unscale"), log.index_of("scaler clip"));
}

}  // namespace
}  // namespace nanhunt::engine::testing
