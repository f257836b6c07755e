// SPDX-License-Identifier: Apache-2.0
// amp.scale_loss: a scaler for each loss, several optimizers, gradients that add up, delay_unscale.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

struct Trained {
  explicit Trained(DType dtype = DType::kF32, bool masters = false)
      : weight(Tensor::zeros({2}, dtype).set_requires_grad(true)),
        optimizer(make_optimizer({{"w", weight}}, {.algorithm = "sgd", .lr = 1, .fp32_masters = masters})) {}
  Tensor loss(double slope) const { return sum(mul(to(weight, DType::kF32), slope)); }
  double gradient() const { return optimizer->gradient(0).at(0); }

  Tensor weight;
  std::unique_ptr<Optimizer> optimizer;
};

void scale_loss(ApexAmp& amp, const Tensor& loss, const std::vector<Optimizer*>& optimizers,
                const ApexAmp::ScaleLoss& options = {}) {
  amp.scale_loss(loss, optimizers, options, [](const Tensor& scaled) { scaled.backward(); });
}

const ApexAmpOptions kTwo{.scaler = {}, .num_losses = 2};

TEST(ApexScaleLoss, lowers_the_scale_of_the_loss_that_overflowed_and_no_other) {
  ApexAmp amp(kTwo);
  Trained run;
  // when the second loss overflows
  scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 0});
  scale_loss(amp, run.loss(HUGE_VAL), {run.optimizer.get()}, {.loss_id = 1});
  // then the step is skipped, though the first was fine
  EXPECT_FALSE(amp.step(*run.optimizer));
  EXPECT_EQ(amp.message(), "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 32768.0");
  EXPECT_EQ(run.weight.at(0), 0);
  EXPECT_EQ(amp.loss_scale(0), 65536);
  EXPECT_EQ(amp.loss_scale(1), 32768);
  // and the next one is not
  run.optimizer->zero_grad();
  scale_loss(amp, run.loss(1), {run.optimizer.get()});
  EXPECT_TRUE(amp.step(*run.optimizer));
  EXPECT_EQ(amp.message(), "");
  EXPECT_EQ(run.weight.at(0), -1);
}

TEST(ApexScaleLoss, adds_up_gradients_of_losses_that_are_scaled_differently) {
  for (const bool masters : {false, true}) {
    ApexAmp amp(kTwo);
    amp.load({{"loss_scaler0.loss_scale", 8}, {"loss_scaler0.unskipped", 0}, {"loss_scaler1.loss_scale", 0x1p20},
              {"loss_scaler1.unskipped", 7}});
    Trained run(masters ? DType::kF16 : DType::kF32, masters);
    scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 0});
    scale_loss(amp, run.loss(0x1p-20), {run.optimizer.get()}, {.loss_id = 1});
    EXPECT_EQ(run.gradient(), 1 + 0x1p-20) << masters;
    scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 0});
    EXPECT_EQ(run.gradient(), 2 + 0x1p-20) << masters;
    if (masters) {
      EXPECT_EQ(run.weight.grad().at(0), 8) << "the model's is the last loss's alone, still scaled";
    }
  }
}

TEST(ApexScaleLoss, adds_fp16_gradients_without_masters_with_one_rounding) {
  ApexAmp amp({.scaler = {.loss_scale = 2}});
  Trained run(DType::kF16);
  scale_loss(amp, run.loss(2048), {run.optimizer.get()});
  scale_loss(amp, run.loss(1.5), {run.optimizer.get()});
  EXPECT_EQ(run.weight.grad().dtype(), DType::kF16);
  EXPECT_EQ(run.gradient(), 2050) << "2049.5 in fp16";
}

TEST(ApexScaleLoss, leaves_gradients_scaled_until_a_block_that_does_not_delay) {
  ApexAmp amp(ApexAmpOptions{.scaler = {}});
  Trained run;
  scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 0, .delay_unscale = true});
  EXPECT_EQ(run.gradient(), 65536);
  EXPECT_EQ(amp.saved()[1].second, 0) << "nothing was checked";
  scale_loss(amp, run.loss(2), {run.optimizer.get()});
  EXPECT_EQ(run.gradient(), 3);
  EXPECT_EQ(amp.saved()[1].second, 1);
}

TEST(ApexScaleLoss, finds_an_overflow_of_a_delayed_block_in_the_one_that_unscales) {
  ApexAmp amp(ApexAmpOptions{.scaler = {}});
  Trained run;
  scale_loss(amp, run.loss(HUGE_VAL), {run.optimizer.get()}, {.loss_id = 0, .delay_unscale = true});
  EXPECT_EQ(amp.loss_scale(0), 65536);
  scale_loss(amp, run.loss(2), {run.optimizer.get()});
  EXPECT_EQ(amp.loss_scale(0), 32768);
  EXPECT_FALSE(amp.step(*run.optimizer));
}

TEST(ApexScaleLoss, skips_every_optimizer_of_the_block_and_none_that_is_not_of_it) {
  ApexAmp amp(kTwo);
  Trained first, second, third;
  scale_loss(amp, add(first.loss(HUGE_VAL), second.loss(1)), {first.optimizer.get(), second.optimizer.get()});
  scale_loss(amp, third.loss(1), {third.optimizer.get()}, {.loss_id = 1});
  EXPECT_FALSE(amp.step(*first.optimizer));
  EXPECT_FALSE(amp.step(*second.optimizer));
  EXPECT_TRUE(amp.step(*third.optimizer));
}

TEST(ApexScaleLoss, never_skips_under_a_static_scale) {
  ApexAmp amp({.scaler = {.loss_scale = 128}});
  Trained run;
  scale_loss(amp, run.loss(HUGE_VAL), {run.optimizer.get()});
  EXPECT_TRUE(amp.step(*run.optimizer));
  EXPECT_EQ(amp.loss_scale(0), 128);
}

TEST(ApexScaleLoss, drops_gradients_of_masters_after_a_step_though_nobody_zeroes_them) {
  ApexAmp amp(ApexAmpOptions{.scaler = {}});
  Trained run(DType::kF16, /*masters=*/true);
  for (int i = 0; i < 2; ++i) {
    scale_loss(amp, run.loss(0.25), {run.optimizer.get()});
    EXPECT_EQ(run.gradient(), 0.25) << i;
    EXPECT_TRUE(amp.step(*run.optimizer));
  }
  EXPECT_EQ(run.weight.at(0), -0.5);
}

TEST(ApexScaleLoss, tells_of_each_scaler_once_and_of_updates_before_the_step) {
  ApexAmp amp(kTwo);
  Trained run;
  EventLog log;
  const HookHandle handle = add_observer(log);
  for (int i = 0; i < 2; ++i) {
    scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 0});
    scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 1});
    amp.step(*run.optimizer);
    run.optimizer->zero_grad();
  }
  const std::vector<std::string> block = {"scaler scale", "scaler unscale", "scaler update"};
  std::vector<std::string> expected;
  for (int i = 0; i < 2; ++i) {
    for (int id = 0; id < 2; ++id) {
      if (i == 0) expected.emplace_back("scaler create");
      expected.insert(expected.end(), block.begin(), block.end());
    }
    expected.emplace_back("scaler step");
  }
  EXPECT_EQ(log.starting_with("scaler"), expected);
}

TEST(ApexScaleLoss, saves_scale_and_count_of_each_scaler_under_the_names_of_apex) {
  ApexAmp amp(kTwo);
  const LossScaler::Saved given = {{"loss_scaler0.loss_scale", 8}, {"loss_scaler0.unskipped", 3},
                                   {"loss_scaler1.loss_scale", 64}, {"loss_scaler1.unskipped", 5}};
  amp.load(given);
  EXPECT_EQ(amp.saved(), given);
  EXPECT_THROW(amp.load({{"loss_scaler0.loss_scale", 8}}), std::invalid_argument);
}

TEST(ApexScaleLoss, refuses_a_loss_that_was_not_announced) {
  ApexAmp amp(kTwo);
  Trained run;
  EXPECT_THROW(scale_loss(amp, run.loss(1), {run.optimizer.get()}, {.loss_id = 2}), std::invalid_argument);
  EXPECT_THROW(ApexAmp({.scaler = {}, .num_losses = 0}), std::invalid_argument);
}

TEST(ApexScaleLoss, accumulates_the_same_bits_delayed_and_not_and_as_torch_does) {
  // fp32 gradients and scales of powers of two: nothing rounds differently
  const auto bits = [](const std::function<void(TrainingSetup&)>& prepare) {
    TrainingSetup setup = fp32_setup();
    prepare(setup);
    setup.options.micro_batches = 3;
    const auto trainer = train_on_digits(std::move(setup));
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(trainer->step().skipped);
    return bytes_of(*trainer);
  };
  const auto apex = [&](bool delay) {
    return bits([delay](TrainingSetup& setup) {
      setup = apex_initialize(std::move(setup), {.loss_scale = 1024.0, .delay_unscale = delay});
    });
  };
  const auto torch = bits([](TrainingSetup& setup) {
    setup.options.autocast = AutocastOptions{};
    setup.options.scaler = GradScalerOptions{.init_scale = 1024};
  });
  EXPECT_TRUE(apex(false) == apex(true));
  EXPECT_TRUE(apex(true) == torch);
}

}  // namespace
}  // namespace nanhunt::engine::testing
