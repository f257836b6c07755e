// SPDX-License-Identifier: Apache-2.0
// fastai v1's to_fp16: rules E1 and E2, and the hazards E3.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

std::unique_ptr<Trainer> train_with(const FastaiOptions& options, double loss_factor = 1, double weight_decay = 0) {
  TrainingSetup setup = fp32_setup();
  setup.optimizer.weight_decay = weight_decay;
  return make_trainer(fastai_to_fp16(std::move(setup), options), digits_train_batches(32, 3, DType::kF32),
                      [loss_factor](const Tensor& logits, const Batch& batch) {
                        EXPECT_EQ(batch.inputs.dtype(), DType::kF16);
                        EXPECT_EQ(logits.dtype(), DType::kF32);
                        return mul(digits_loss(logits, batch), loss_factor);
                      });
}

std::vector<double> masters(Trainer& trainer) {
  std::vector<double> all;
  for (const NamedTensor& target : trainer.optimizer().stepped()) {
    for (const double number : target.tensor.to_vector()) all.push_back(number);
  }
  return all;
}

TEST(Fastai, halves_all_but_batch_norms_and_keeps_a_master_of_each_fp16_parameter) {
  const auto trainer = train_with({});
  const std::vector<NamedTensor> parameters = trainer->optimizer().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool normalises = parameters[i].path.find("bn") != std::string::npos;
    EXPECT_EQ(parameters[i].tensor.dtype(), normalises ? DType::kF32 : DType::kF16) << parameters[i].path;
    EXPECT_EQ(trainer->optimizer().master(i).defined(), !normalises) << parameters[i].path;
  }
}

TEST(Fastai, runs_a_step_in_the_order_of_its_callback) {
  // given a static scale and a clip
  const auto trainer = train_with({.dynamic = false, .clip = 0.5});
  EventLog log;
  const HookHandle handle = add_observer(log);
  const StepResult result = trainer->step();
  // then: batch to fp16, output to fp32, loss times 512, gradients divided into masters, clipped, weights copied back
  EXPECT_EQ(result.scale, 512);
  EXPECT_LT(log.index_of("op data  _to_copy"), log.index_of("enter "));
  EXPECT_LT(log.index_of("exit "), log.index_of("op loss <loss> _to_copy"));
  EXPECT_LT(log.index_of("op scale <loss> mul"), log.index_of("op backward <loss> mul_backward"));
  EXPECT_LT(log.index_of("op unscale fc.weight div"), log.index_of("op clip fc.weight mul_"));
  EXPECT_LT(log.index_of("op clip fc.weight mul_"), log.index_of("boundary"));
  EXPECT_EQ(log.starting_with("op optimizer fc.weight copy_").size(), 1U);
  EXPECT_TRUE(log.starting_with("op optimizer bn1.weight copy_").empty()) << "it is stepped itself";
}

TEST(Fastai, gives_the_masters_the_gradients_of_the_model_divided_by_the_scale) {
  const auto trainer = train_with({.dynamic = false});
  std::size_t compared = 0;
  trainer->set_boundary_callback([&](Trainer& at) {
    for (std::size_t i = 0; i < at.optimizer().parameters().size(); ++i) {
      if (!at.optimizer().master(i).defined()) continue;
      const std::vector<double> model = at.optimizer().parameters()[i].tensor.grad().to_vector();
      const std::vector<double> master = at.optimizer().gradient(i).to_vector();
      for (std::size_t k = 0; k < model.size(); ++k) EXPECT_EQ(master[k], model[k] / 512);
      compared += model.size();
    }
  });
  trainer->step();
  EXPECT_GT(compared, 1000U);
}

TEST(Fastai, halves_a_dynamic_scale_after_an_overflow_and_drops_the_gradients) {
  // given a loss of which 2^16 makes more than fp16 holds
  const auto trainer = train_with({}, 1024);
  const std::vector<double> before = masters(*trainer);
  const StepResult result = trainer->step();
  EXPECT_EQ(result.scale, 0x1p16);
  EXPECT_EQ(trainer->scaler()->get_scale(), 0x1p15);
  EXPECT_EQ(masters(*trainer), before) << "there was no gradient yet, so there is nothing to remember";
  EXPECT_TRUE(result.message.empty()) << "fastai says nothing";
}

TEST(Fastai, E2_doubles_the_scale_after_max_noskip_clean_steps_and_not_above_its_cap) {
  const auto trainer = train_with({.loss_scale = 8, .max_noskip = 3, .max_scale = 16});
  std::vector<double> scales;
  for (int i = 0; i < 8; ++i) scales.push_back(trainer->step().scale);
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 8, 16, 16, 16, 16, 16}));
}

// The optimizer runs in a step whose gradients were dropped.
TEST(Fastai, E3_momentum_moves_weights_in_a_step_that_overflowed) {
  double factor = 1;
  TrainingSetup setup = fastai_to_fp16(fp32_setup(), {.loss_scale = 512, .clip = 1});
  const auto trainer = make_trainer(std::move(setup), digits_train_batches(32, 3, DType::kF32),
                                    [&](const Tensor& logits, const Batch& batch) {
                                      return mul(digits_loss(logits, batch), factor);
                                    });
  trainer->step();
  const std::vector<double> before = masters(*trainer);
  factor = 1e6;
  const StepResult overflowed = trainer->step();
  EXPECT_FALSE(overflowed.skipped);
  EXPECT_EQ(trainer->scaler()->get_scale(), 256);
  const std::vector<double> after = masters(*trainer);
  EXPECT_NE(before, after);
  EXPECT_TRUE(std::all_of(after.begin(), after.end(), [](double x) { return std::isfinite(x); }));
}

TEST(Fastai, E3_weight_decay_shrinks_weights_in_a_step_that_overflowed) {
  double factor = 1;
  TrainingSetup setup = fp32_setup();
  setup.optimizer = {.algorithm = "sgd", .lr = 0.5, .weight_decay = 0.5};
  const auto trainer = make_trainer(fastai_to_fp16(std::move(setup), {.loss_scale = 512}),
                                    digits_train_batches(32, 3, DType::kF32),
                                    [&](const Tensor& logits, const Batch& batch) {
                                      return mul(digits_loss(logits, batch), factor);
                                    });
  trainer->step();
  const std::vector<double> before = trainer->optimizer().master(0).to_vector();
  factor = 1e6;
  trainer->step();
  const std::vector<double> after = trainer->optimizer().master(0).to_vector();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_NEAR(after[i], 0.75 * before[i], 1e-6 * std::abs(before[i]));
}

TEST(Fastai, E3_at_a_scale_of_1_and_with_a_static_one_an_overflow_reaches_the_weights) {
  for (const FastaiOptions& options : {FastaiOptions{.loss_scale = 1}, FastaiOptions{.dynamic = false}}) {
    const auto trainer = train_with(options, 1e8);
    EXPECT_FALSE(trainer->step().skipped);
    const std::vector<double> after = masters(*trainer);
    EXPECT_FALSE(std::all_of(after.begin(), after.end(), [](double x) { return std::isfinite(x); }));
  }
}

TEST(Fastai, clips_what_it_has_copied_and_nothing_after_an_overflow) {
  class Clips : public Observer {
   public:
    void on_scaler(const ScalerEvent& event) noexcept override { seen += event.action == ScalerAction::kClip; }
    int seen = 0;
  };
  const auto trainer = train_with({.loss_scale = 0x1p20, .clip = 1e-3}, 64);
  Clips clips;
  const HookHandle handle = add_observer(clips);
  int copied = 0;
  for (int i = 0; i < 20; ++i) {
    const double before = trainer->scaler()->get_scale();
    trainer->step();
    copied += trainer->scaler()->get_scale() >= before;
  }
  EXPECT_GT(copied, 2);
  EXPECT_LT(copied, 20);
  EXPECT_EQ(clips.seen, copied);
}

TEST(Fastai, refuses_what_it_would_choose_itself) {
  TrainingSetup scaled = fp32_setup();
  scaled.options.scaler = GradScalerOptions{};
  EXPECT_THROW(fastai_to_fp16(std::move(scaled)), std::invalid_argument);
  EXPECT_THROW(fastai_to_fp16(TrainingSetup{}), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine::testing
