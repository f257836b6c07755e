// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(LightningScaler, is_that_of_torch_under_its_own_name) {
  DrivenScaler lightning(LightningScalerOptions{}), torch(GradScalerOptions{});
  EXPECT_EQ(lightning.scaler->saved(), torch.scaler->saved());
  EXPECT_EQ(lightning.update(true), "");
  EXPECT_EQ(lightning.scaler->get_scale(), 32768);
  EXPECT_EQ(lightning.family, "lightning (torch.amp)");
}

}  // namespace
}  // namespace nanhunt::engine::testing
