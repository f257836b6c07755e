// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexLegacyScaler, says_what_fp16_optimizer_prints) {
  DrivenScaler legacy(ApexLegacyScalerOptions{.init_scale = 1024});
  EXPECT_EQ(legacy.update(true), "OVERFLOW! Skipping step. Attempted loss scale: 1024.0, reducing to 512.0");
  EXPECT_EQ(legacy.optimizer.steps, 0);
}

TEST(ApexLegacyScaler, counts_clean_updates_from_the_last_overflow) {
  DrivenScaler legacy(ApexLegacyScalerOptions{.scale_window = 10});
  for (const bool found : {false, false, true, false}) legacy.update(found);
  EXPECT_EQ(legacy.last.growth_tracker, 1);
  EXPECT_EQ(legacy.last.growth_interval, 10);
}

}  // namespace
}  // namespace nanhunt::engine::testing
