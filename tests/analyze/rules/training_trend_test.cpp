// SPDX-License-Identifier: Apache-2.0
// Training that fails though no number is bad, and what looks like it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "src/analyze/rules/run/training_trend.h"

namespace nanhunt::analyze {
namespace {

using Course = std::function<double(int)>;

struct Training {
  Course loss = [](int) { return 2.0; };
  Course gradient = [](int) { return 1.0; };
  Course lr = [](int) { return 0.1; };
  int steps = 40;
};

// Titles of what is found, joined.
std::string found(const Training& training) {
  Names names;
  TrainingTrend trend(names);
  for (int i = 0; i < training.steps; ++i)
    trend.on_step_end(static_cast<std::uint32_t>(i), training.loss(i), training.gradient(i), training.lr(i));
  std::string titles;
  for (const Finding& f : trend.findings()) titles += f.title + "\n";
  return titles;
}

TEST(TrainingTrend, of_a_loss_that_grows_a_thousandfold_and_still_does_is_told) {
  EXPECT_EQ(found({.loss = [](int i) { return std::pow(1.5, i); }}), "Training diverges: the loss has grown from 1 to 7.372e6\n");
  EXPECT_EQ(found({}), "");
  // its twins: growth that is less, that is over, or that is no growth, of a loss below 0
  EXPECT_EQ(found({.loss = [](int i) { return std::pow(1.1, i); }}), "");
  EXPECT_EQ(found({.loss = [](int i) { return i < 10 ? 1.0 : 5000.0; }}), "");
  EXPECT_EQ(found({.loss = [](int i) { return -std::pow(1.5, i); }}), "");
}

TEST(TrainingTrend, of_a_learning_rate_below_0_is_told) {
  EXPECT_EQ(found({.lr = [](int i) { return 0.3 - 0.01 * i; }}), "The learning rate is below 0 in 9 steps, first in step 31\n");
  EXPECT_EQ(found({.lr = [](int i) { return std::max(0.0, 0.3 - 0.01 * i); }}), "");
}

TEST(TrainingTrend, of_gradients_that_are_all_0_is_told_after_16_steps_and_not_where_the_loss_is_0) {
  const auto from = [](int first) { return [first](int i) { return i < first ? 1.0 : 0.0; }; };
  EXPECT_EQ(found({.gradient = from(16), .steps = 32}), "Training stands still: every gradient is exactly 0, in the last 16 steps\n");
  EXPECT_EQ(found({.gradient = from(17), .steps = 32}), "");
  EXPECT_EQ(found({.gradient = from(60), .steps = 80}), "") << "most steps had gradients";
  EXPECT_EQ(found({.loss = [](int) { return 0.0; }, .gradient = from(0)}), "");
  EXPECT_EQ(found({.loss = [](int i) { return i < 4 ? 1.0 : 0.1; }, .gradient = from(4)}), "") << "all may be learnt";
}

TEST(TrainingTrend, of_parameters_whose_gradients_are_0_needs_three_quarters_of_them) {
  const auto told = [](int zeros, int parameters) {
    Names names;
    TrainingTrend trend(names);
    for (std::uint32_t i = 0; i < 16; ++i) {
      trend.on_step_end(i, 2, 1, 0.1);
      for (int p = 0; p < parameters; ++p)
        trend.on_norm({0, i, TensorRole::kBoundaryGradient, static_cast<StringId>(p + 1), p < zeros ? 0.0 : 1.0, 1});
    }
    return trend.findings().size();
  };
  EXPECT_EQ(told(3, 4), 1u);
  EXPECT_EQ(told(2, 4), 0u);
}

}  // namespace
}  // namespace nanhunt::analyze
