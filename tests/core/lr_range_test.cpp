// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/lr_range.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanhunt {
namespace {

TEST(SmoothedLoss, starts_at_the_first_loss_and_follows_slowly) {
  SmoothedLoss smoothed;
  EXPECT_DOUBLE_EQ(smoothed.add(3), 3);
  // (0.98 * 0.02 * 3 + 0.02 * 5) / (1 - 0.98^2)
  EXPECT_DOUBLE_EQ(smoothed.add(5), (0.98 * 0.02 * 3 + 0.02 * 5) / (1 - 0.98 * 0.98));
  for (int i = 0; i < 2000; ++i) smoothed.add(5);
  EXPECT_NEAR(smoothed.add(5), 5, 1e-12);
}

TEST(LrRange, stops_above_4_times_its_best_and_at_nan) {
  LrRange range;
  EXPECT_FALSE(range.add(0, 0.1, 2));
  EXPECT_FALSE(range.add(1, 0.2, 1));
  EXPECT_LT(range.best(), 1.5);
  EXPECT_FALSE(range.add(2, 0.4, 8)) << "smoothed it is below 4";
  EXPECT_TRUE(range.add(3, 0.8, 80));
  EXPECT_TRUE(range.add(4, 1.6, std::nan("")));
  EXPECT_EQ(range.points().size(), 5U);
  LrRange infinite;
  infinite.add(0, 0.1, 1);
  EXPECT_TRUE(infinite.add(1, 0.2, std::numeric_limits<double>::infinity()));
}

// A valley: falls fastest at point 30, is lowest at 40.
std::vector<LrPoint> valley() {
  std::vector<LrPoint> points;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const double x = i;
    const double loss = i <= 40 ? 2 - std::tanh((x - 30) / 4) + (x < 30 ? 0 : 0.001 * (40 - x)) : 1 + (x - 40);
    points.push_back({i, std::pow(10, x / 10), 0, loss});
  }
  return points;
}

TEST(SuggestLr, is_where_the_loss_falls_fastest_and_a_tenth_of_where_it_is_lowest) {
  const std::vector<LrPoint> points = valley();
  const auto suggestion = suggest_lr(points);
  ASSERT_TRUE(suggestion);
  EXPECT_DOUBLE_EQ(suggestion->steepest, points[30].lr);
  EXPECT_DOUBLE_EQ(suggestion->tenth_of_lowest, points[40].lr / 10);
}

TEST(SuggestLr, leaves_out_the_first_10_points_and_the_last_5_and_what_is_not_finite) {
  std::vector<LrPoint> points = valley();
  points[5].smoothed = points[57].smoothed = -1000;
  points[50].smoothed = std::nan("");
  const auto suggestion = suggest_lr(points);
  ASSERT_TRUE(suggestion);
  EXPECT_DOUBLE_EQ(suggestion->steepest, points[30].lr);
  EXPECT_DOUBLE_EQ(suggestion->tenth_of_lowest, points[40].lr / 10);
  EXPECT_TRUE(suggest_lr(std::span(points).first(17)));
  EXPECT_FALSE(suggest_lr(std::span(points).first(16)));
}

}  // namespace
}  // namespace nanhunt
