// SPDX-License-Identifier: Apache-2.0
// Scalers that take some overflows before they lower the scale, and those that end training at their smallest one.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/analyze/scaled_run.h"

namespace nanhunt {
namespace {

using namespace testing_support;

std::size_t times(const Analysis& a, const std::string& what) {
  return static_cast<std::size_t>(std::ranges::count_if(a.scaler->events, [&](const auto& e) { return e.what == what; }));
}

TEST(Hysteresis, that_takes_an_overflow_is_told_and_is_no_backoff) {
  // given a scale that is one halving too high, and hysteresis for two overflows
  ScaledRun run(8192, /*dynamic=*/true, /*hysteresis=*/2);
  // when
  run.steps(8);
  // then the first two skips leave the scale, the third lowers it, and that was calibration
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(times(a, "skip"), 3u);
  EXPECT_EQ(times(a, "hysteresis"), 2u);
  EXPECT_EQ(times(a, "backoff"), 1u);
  EXPECT_EQ(a.scaler->backoffs, 1u);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
}

TEST(Hysteresis, however_long_it_lasts_is_no_floor) {
  ScaledRun run(8192, true, /*hysteresis=*/12);
  run.steps(20);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating) << a.verdict.headline;
  // and a scale that stands still without it is one
  ScaledRun floor(8192);
  floor.floor = 8192;
  floor.steps(20);
  EXPECT_EQ(analysis_of(floor.t).verdict.status, VerdictStatus::kFault);
}

TEST(Hysteresis, that_is_spent_leaves_a_scale_that_falls_to_its_smallest_and_ends_training) {
  // given every third batch passes 65504 in forward, whatever the scale is
  ScaledRun run(8, true, /*hysteresis=*/1);
  run.floor = 1;
  for (int i = 0; i < 4; ++i) {
    run.step({.forward_inf = true});
    run.steps(2);
  }
  run.step({.forward_inf = true, .gives_up = true});
  // then: one story, at the overflow where it begins
  const Analysis a = analysis_of(run.t);
  ASSERT_FALSE(a.findings.empty());
  const Finding& f = a.findings.front();
  EXPECT_EQ(f.cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(f.severity, Severity::kFault);
  EXPECT_EQ(f.place.op, "mm");
  EXPECT_EQ(f.place.phase, Phase::kForward);
  EXPECT_EQ(f.first_step, 0u);
  EXPECT_NE(text_of(f).find("the loss scaler ended training: its scale 1 could not get lower"), std::string::npos)
      << text_of(f);
  EXPECT_NE(text_of(f).find("5 skipped steps took the scale from 8 to 1"), std::string::npos) << text_of(f);
  EXPECT_NE(text_of(f).find("Hysteresis took 1 of them"), std::string::npos) << text_of(f);
  EXPECT_EQ(times(a, "gave_up"), 1u);
  // and its repaired twin is silent
  ScaledRun twin(8, true, 1);
  twin.floor = 1;
  twin.steps(13);
  EXPECT_EQ(table(analysis_of(twin.t)), "clean\n");
}

}  // namespace
}  // namespace nanhunt
