// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(ApexScaler, says_what_apex_prints_with_the_scale_already_reduced) {
  DrivenScaler apex(ApexScalerOptions{.loss_id = 1});
  EXPECT_EQ(apex.update(false), "");
  EXPECT_EQ(apex.update(true), "Gradient overflow.  Skipping step, loss scaler 1 reducing loss scale to 32768.0");
  EXPECT_EQ(apex.last_text, apex.scaler->message());
  EXPECT_EQ(apex.family, "apex.amp");
  EXPECT_EQ(apex.optimizer.steps, 1);
}

TEST(ApexScaler, a_static_one_steps_and_says_nothing_whatever_the_gradients_are) {
  DrivenScaler apex(ApexScalerOptions{.loss_scale = 128});
  EXPECT_EQ(apex.update(true), "");
  EXPECT_EQ(apex.optimizer.steps, 1);
  EXPECT_FALSE(apex.last.dynamic);
  EXPECT_FALSE(apex.last.found_inf);
}

}  // namespace
}  // namespace nanhunt::engine::testing
