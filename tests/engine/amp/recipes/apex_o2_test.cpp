// SPDX-License-Identifier: Apache-2.0
// Apex O2: an fp16 model with fp32 batch norms and masters, under a dynamic scale.
#include <gtest/gtest.h>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexO2, halves_all_but_batch_norms_and_keeps_a_master_of_each_fp16_parameter) {
  const auto trainer = train_by({.opt_level = "O2"});
  const std::vector<NamedTensor> parameters = trainer->optimizer().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [path, parameter] = parameters[i];
    const bool normalises = path.find("bn") != std::string::npos;
    EXPECT_EQ(parameter.dtype(), normalises ? DType::kF32 : DType::kF16) << path;
    EXPECT_EQ(trainer->optimizer().master(i).defined(), !normalises) << path;
  }
  for (const auto& [path, buffer] : trainer->model().named_buffers()) EXPECT_EQ(buffer.dtype(), DType::kF32) << path;
}

TEST(ApexO2, runs_a_step_in_the_order_of_apex) {
  // given
  const auto trainer = train_by({.opt_level = "O2", .loss_scale = 128.0});
  EventLog log;
  const HookHandle handle = add_observer(log);
  // when
  const StepResult result = trainer->step();
  // then: fp32 loss times scale, gradients unscaled into masters, weights copied back
  EXPECT_EQ(result.scale, 128);
  EXPECT_LT(log.index_of("op scale <loss> mul"), log.index_of("op backward <loss> mul_backward"));
  EXPECT_LT(log.index_of("op unscale fc.weight _to_copy"),
            log.index_of("op unscale fc.weight _amp_foreach_non_finite_check_and_unscale_"));
  EXPECT_LT(log.index_of("scaler unscale"), log.index_of("boundary"));
  EXPECT_EQ(log.starting_with("op optimizer fc.weight copy_").size(), 1U);
  EXPECT_TRUE(log.starting_with("op optimizer bn1.weight copy_").empty()) << "it is stepped itself";
}

TEST(ApexO2, leaves_the_gradients_of_the_model_scaled) {
  const auto trainer = train_by({.opt_level = "O2", .loss_scale = 128.0});
  double model = 0, master = 0;
  trainer->set_boundary_callback([&](Trainer& at) {
    const NamedTensor bias = at.optimizer().parameters().back();
    model = bias.tensor.grad().at(0);
    master = at.optimizer().gradient(at.optimizer().parameters().size() - 1).at(0);
  });
  trainer->step();
  EXPECT_NE(master, 0);
  EXPECT_EQ(model, 128 * master);
}

TEST(ApexO2, skips_a_step_whose_gradients_overflow_and_says_so) {
  // given a loss of which the scale makes more than fp16 holds
  const auto loss = [](const Tensor& logits, const Batch& batch) { return mul(digits_loss(logits, batch), 1024); };
  const auto trainer = make_trainer(apex_initialize(fp32_setup(), {.opt_level = "O2"}),
                                    digits_train_batches(32, 3, DType::kF32), loss);
  const std::vector<double> before = trainer->optimizer().master(0).to_vector();
  const StepResult result = trainer->step();
  EXPECT_TRUE(result.skipped);
  EXPECT_TRUE(result.message.starts_with("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0"));
  EXPECT_EQ(trainer->optimizer().master(0).to_vector(), before);
}

}  // namespace
}  // namespace nanhunt::engine::testing
