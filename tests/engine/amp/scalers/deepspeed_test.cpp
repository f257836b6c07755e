// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(DeepSpeedScaler, says_whether_it_spent_hysteresis_or_lowered_the_scale) {
  DrivenScaler scaler(DeepSpeedScalerOptions{});
  EXPECT_EQ(scaler.update(true),
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. Reducing "
            "hysteresis to 1");
  EXPECT_EQ(scaler.last.hysteresis, 0U);
  EXPECT_EQ(scaler.update(true),
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768");
  EXPECT_EQ(scaler.optimizer.steps, 0);
}

TEST(DeepSpeedScaler, an_overflow_at_the_smallest_scale_ends_training_and_is_told_first) {
  DrivenScaler scaler(DeepSpeedScalerOptions{.init_scale = 1, .hysteresis = 1});
  EXPECT_THROW(scaler.update(true), std::runtime_error);
  EXPECT_EQ(scaler.last_text,
            "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
  EXPECT_TRUE(scaler.last.found_inf);
  EXPECT_EQ(scaler.last.scale, 1);
}

}  // namespace
}  // namespace nanhunt::engine::testing
