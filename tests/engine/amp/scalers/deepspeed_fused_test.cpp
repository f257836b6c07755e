// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(DeepSpeedFusedScaler, says_what_its_optimizer_logs) {
  DrivenScaler scaler(DeepSpeedFusedScalerOptions{.init_scale = 2});
  EXPECT_EQ(scaler.update(true),
            "[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 2.0, reducing to 1.0");
  EXPECT_EQ(scaler.scales({true, true}), (std::vector<double>{1, 1})) << "it has a floor and no hysteresis";
}

}  // namespace
}  // namespace nanhunt::engine::testing
