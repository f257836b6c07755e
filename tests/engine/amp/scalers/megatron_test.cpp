// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(MegatronScaler, does_not_back_off_while_hysteresis_is_left_and_prints_nothing) {
  DrivenScaler scaler(MegatronScalerOptions{.initial_scale = 1024});
  EXPECT_EQ(scaler.update(true), "");
  EXPECT_EQ(scaler.scaler->get_scale(), 1024);
  EXPECT_EQ(scaler.last.hysteresis, 0U) << "the next overflow lowers the scale";
  EXPECT_EQ(scaler.optimizer.steps, 0) << "the step is skipped all the same";
  EXPECT_EQ(scaler.scales({false, true}), (std::vector<double>{1024, 512})) << "a clean update refills nothing";
}

}  // namespace
}  // namespace nanhunt::engine::testing
