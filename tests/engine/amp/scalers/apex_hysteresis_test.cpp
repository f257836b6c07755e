// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexHysteresisScaler, tells_how_many_overflows_it_still_takes_and_prints_nothing) {
  DrivenScaler scaler(ApexHysteresisScalerOptions{.init_scale = 1024, .hysteresis = 3});
  EXPECT_EQ(scaler.update(true), "");
  EXPECT_EQ(scaler.last.hysteresis, 1U);
  scaler.update(false);
  EXPECT_EQ(scaler.last.hysteresis, 2U) << "any clean update refills it";
  EXPECT_EQ(scaler.scales({true, true, true, true}), (std::vector<double>{1024, 1024, 512, 256}));
  EXPECT_EQ(scaler.last.hysteresis, 0U);
}

}  // namespace
}  // namespace nanhunt::engine::testing
