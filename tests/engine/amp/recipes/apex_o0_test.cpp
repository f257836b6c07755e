// SPDX-License-Identifier: Apache-2.0
// Apex O0: fp32 training, bit for bit.
#include <gtest/gtest.h>

#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexO0, trains_the_bits_of_fp32_without_a_single_cast) {
  const auto baseline = train_by({.opt_level = "O0"}), plain = train_on_digits(fp32_setup());
  EventLog log;
  const HookHandle handle = add_observer(log);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(baseline->step().loss, plain->step().loss);
  EXPECT_EQ(bytes_of(*baseline), bytes_of(*plain));
  EXPECT_EQ(baseline->scaler(), nullptr);
  for (const std::string& line : log.lines) EXPECT_FALSE(line.ends_with("_to_copy")) << line;
}

TEST(ApexO0, makes_a_model_of_another_format_fp32) {
  TrainingSetup setup = fp32_setup();
  setup.model->to(DType::kF64);
  EXPECT_EQ(dtype_of(*apex_initialize(std::move(setup), {.opt_level = "O0"}).model, "conv1.weight"), DType::kF32);
}

}  // namespace
}  // namespace nanhunt::engine::testing
