// SPDX-License-Identifier: Apache-2.0
// By hand from the rule: no known answers of it are kept.
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/engine/amp/scalers/driven.h"

namespace nanhunt::engine::testing {
namespace {

TEST(FairseqScaler, halves_at_an_overflow_and_doubles_after_a_window_without_one) {
  DrivenScaler scaler(FairseqScalerOptions{.init_scale = 4, .scale_window = 2});
  EXPECT_EQ(scaler.scales({false, false, true, false, false}), (std::vector<double>{4, 8, 4, 4, 8}));
  EXPECT_EQ(scaler.update(true), "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 4.0");
}

TEST(FairseqScaler, tolerates_a_share_of_overflows_before_it_lowers_the_scale) {
  // given a tolerance of a half, and three clean updates since the start
  DrivenScaler scaler(FairseqScalerOptions{.init_scale = 64, .tolerance = 0.5});
  for (int i = 0; i < 3; ++i) scaler.update(false);
  // then 1 of 4 and 2 of 5 are tolerated, 3 of 6 are not
  EXPECT_EQ(scaler.scales({true, true}), (std::vector<double>{64, 64}));
  EXPECT_EQ(scaler.last.hysteresis, 0U);
  EXPECT_EQ(scaler.scales({true}), (std::vector<double>{32}));
}

TEST(FairseqScaler, gives_training_up_below_its_smallest_scale_and_keeps_the_one_before) {
  DrivenScaler scaler(FairseqScalerOptions{.init_scale = 2, .min_loss_scale = 1});
  EXPECT_THROW(scaler.update(true), std::runtime_error);
  EXPECT_EQ(scaler.scaler->get_scale(), 2);
  EXPECT_EQ(scaler.last_text,
            "Minimum loss scale reached (1.0). Your loss is probably exploding. Try lowering the learning rate, using "
            "gradient clipping or increasing the batch size.");
}

TEST(FairseqScaler, does_not_go_below_its_threshold) {
  DrivenScaler scaler(FairseqScalerOptions{.init_scale = 2, .threshold = 1});
  EXPECT_EQ(scaler.scales({true, true, true}), (std::vector<double>{1, 1, 1}));
}

}  // namespace
}  // namespace nanhunt::engine::testing
