// SPDX-License-Identifier: Apache-2.0
// Apex O3: everything in fp16.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexO3, halves_parameters_buffers_and_state_and_scales_nothing) {
  const auto trainer = train_by({.opt_level = "O3"});
  EventLog log;
  const HookHandle handle = add_observer(log);
  trainer->step();
  for (const auto& tensors : {trainer->model().named_parameters(), trainer->model().named_buffers(),
                              trainer->optimizer().named_state()}) {
    for (const auto& [path, tensor] : tensors) EXPECT_EQ(tensor.dtype(), DType::kF16) << path;
  }
  EXPECT_TRUE(log.starting_with("scaler").empty());
  EXPECT_TRUE(log.starting_with("op scale").empty());
}

TEST(ApexO3, steps_whatever_the_gradients_are) {
  TrainingSetup setup = apex_initialize(fp32_setup(), {.opt_level = "O3"});
  const auto loss = [](const Tensor& logits, const Batch& batch) { return mul(digits_loss(logits, batch), 0x1p30); };
  const auto trainer = make_trainer(std::move(setup), digits_train_batches(32, 3, DType::kF32), loss);
  EXPECT_FALSE(trainer->step().skipped);
  EXPECT_TRUE(std::isnan(trainer->step().loss));
}

}  // namespace
}  // namespace nanhunt::engine::testing
