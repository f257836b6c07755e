// SPDX-License-Identifier: Apache-2.0
// fastai's learning rate finder, in fp32 and under mixed precision.
#include "nanhunt/engine/lr_finder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "nanhunt/engine/schedules.h"
#include "tests/engine/amp/recipes/recipe_run.h"
#include "tests/engine/event_log.h"

namespace nanhunt::engine::testing {
namespace {

constexpr LrFinderOptions kRamp{.start_lr = 1e-5, .end_lr = 1e4, .steps = 100};

TrainingSetup made_by(const std::string& recipe) {
  for (const NamedRecipe& known : named_recipes()) {
    if (known.name == recipe) return known.apply(fp32_setup());
  }
  return fp32_setup();
}

TEST(LrFinder, follows_the_exponential_ramp_and_stops_once_the_smoothed_loss_is_4_times_its_best) {
  for (const char* recipe : {"fp32", "fastai", "fastai-static", "apex-o1", "apex-o2"}) {
    SCOPED_TRACE(recipe);
    const auto trainer = train_on_digits(made_by(recipe));
    EventLog log;
    const HookHandle handle = add_observer(log);
    const LrCurve curve = find_lr(*trainer, kRamp);
    ASSERT_GT(curve.points.size(), 20U);
    ASSERT_LT(curve.points.size(), 100U);
    EXPECT_TRUE(curve.diverged);
    const LrSchedule ramp = exponential_ramp(1e-5, 1e4, 100);
    double average = 0, best = 0;
    for (std::size_t i = 0; i < curve.points.size(); ++i) {
      const LrPoint& point = curve.points[i];
      EXPECT_EQ(point.step, i);
      EXPECT_EQ(point.lr, ramp(point.step));
      average = 0.98 * average + 0.02 * point.loss;
      const double smoothed = average / (1 - std::pow(0.98, static_cast<double>(i + 1)));
      if (std::isfinite(smoothed)) {
        EXPECT_NEAR(point.smoothed, smoothed, 1e-12 * smoothed);
      }
      best = i == 0 ? smoothed : std::min(best, smoothed);
      const bool stops = std::isnan(smoothed) || smoothed > 4 * best;
      EXPECT_EQ(stops, i + 1 == curve.points.size()) << i;
    }
    EXPECT_EQ(log.last_lr, curve.points.back().lr) << "steps are told with their rate";
    ASSERT_TRUE(curve.suggestion);
    EXPECT_GT(curve.suggestion->steepest, 1e-4);
    EXPECT_LT(curve.suggestion->steepest, curve.points.back().lr);
    EXPECT_LT(curve.suggestion->tenth_of_lowest, curve.points.back().lr);
  }
}

TEST(LrFinder, leaves_model_optimizer_scaler_and_rate_as_they_were_to_the_bit) {
  for (const NamedRecipe& recipe : named_recipes()) {
    SCOPED_TRACE(recipe.name);
    const auto trainer = train_on_digits(recipe.apply(fp32_setup()));
    for (int i = 0; i < 3; ++i) trainer->step();
    const auto before = bytes_of(*trainer);
    const auto snapshot = trainer->snapshot();
    const LossScaler::Saved scaler = trainer->scaler() ? trainer->scaler()->saved() : LossScaler::Saved();
    find_lr(*trainer, {.start_lr = 1e-3, .end_lr = 1e3, .steps = 30});
    EXPECT_EQ(bytes_of(*trainer), before);
    EXPECT_EQ(trainer->optimizer().options().lr, 0.05);
    EXPECT_GT(trainer->next_step(), 3U) << "no step has its number twice";
    if (trainer->scaler() != nullptr) {
      EXPECT_EQ(trainer->scaler()->saved(), scaler);
    }
    // and it trains on as though nothing had been
    trainer->restore(*snapshot);
    const auto other = train_on_digits(recipe.apply(fp32_setup()));
    for (int i = 0; i < 3; ++i) other->step();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(trainer->step().loss, other->step().loss);
    EXPECT_EQ(bytes_of(*trainer), bytes_of(*other));
  }
}

TEST(LrFinder, suggests_a_rate_that_trains_well) {
  const auto trainer = train_on_digits(made_by("fastai"));
  const LrCurve curve = find_lr(*trainer, kRamp);
  ASSERT_TRUE(curve.suggestion);
  trainer->optimizer().set_lr(curve.suggestion->steepest);
  double first = 0, last = 0;
  for (int i = 0; i < 100; ++i) {
    const double loss = trainer->step().loss;
    if (i < 10) first += loss / 10;
    if (i >= 90) last += loss / 10;
  }
  EXPECT_LT(last, 0.2 * first);
}

TEST(LrFinder, told_not_to_stop_it_runs_to_its_end_and_told_not_to_restore_it_leaves_what_is_left) {
  const auto trainer = train_on_digits(made_by("fastai"));
  const auto before = bytes_of(*trainer);
  LrFinderOptions options = kRamp;
  options.stop_div = options.restores = false;
  const LrCurve curve = find_lr(*trainer, options);
  EXPECT_EQ(curve.points.size(), 100U);
  EXPECT_TRUE(curve.diverged);
  EXPECT_NE(bytes_of(*trainer), before);
}

TEST(LrFinder, that_never_diverges_says_so_and_restores_all_the_same) {
  const auto trainer = train_on_digits(fp32_setup());
  const auto before = bytes_of(*trainer);
  const LrCurve curve = find_lr(*trainer, {.start_lr = 1e-6, .end_lr = 1e-4, .steps = 12});
  EXPECT_FALSE(curve.diverged);
  EXPECT_EQ(curve.points.size(), 12U);
  EXPECT_FALSE(curve.suggestion) << "too few points";
  EXPECT_EQ(bytes_of(*trainer), before);
}

TEST(LrFinder, refuses_a_ramp_that_is_none) {
  const auto trainer = train_on_digits(fp32_setup());
  EXPECT_THROW(find_lr(*trainer, {.start_lr = 0}), std::invalid_argument);
  EXPECT_THROW(find_lr(*trainer, {.steps = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace nanhunt::engine::testing
