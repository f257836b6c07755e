// SPDX-License-Identifier: Apache-2.0
// A learning rate finder's ramp: what overflows past its divergence is its doing, and a fault only where what it left is
// trained on.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Ramp {
  int steps = 40;
  double from = 1e-6, factor = 2;
  int diverges = 30;        // from here on the loss grows tenfold a step
  int overflows = 35;       // and here the loss, for the rest of the ramp
  int after = 5;            // further steps, at a rate of 0.1
  double loss_after = kInf;
  int uneven = -1;          // the rate of this step is another
  double lr_after = 0.1;
  double sign = 1;          // of the loss
  bool label = false;       // it is not finite for a label that is not
  int late = -1;            // a step after the ramp in which the loss overflows
};

Analysis ramping(const Ramp& r) {
  TraceBuilder t;
  Handle weight = t.value(finite().squares(1));
  t.mark(TensorRole::kParameter, "net.weight", weight);
  for (int step = 0; step < r.steps + r.after; ++step) {
    const bool in_ramp = step < r.steps;
    const bool bad = step == r.late || (in_ramp ? step >= r.overflows : !std::isfinite(r.loss_after));
    double loss = r.sign * (step < r.diverges ? 2 : 2 * std::pow(10, step - r.diverges + 1));
    if (!in_ramp) loss = r.loss_after;
    if (bad) loss = kInf;
    const Handle label = t.value(bad && r.label ? finite().nan(1) : finite());
    t.mark(TensorRole::kLabel, "targets", label);
    const Handle y = t.in("net").op("mm", {{"self", weight}, {"mat2", weight}},
                                    bad && !r.label ? finite().range(-1e25, 1e25) : finite());
    const Handle l = t.in("<loss>", Phase::kLoss)
                         .op("mse_loss", {{"self", y}, {"target", label}},
                             !bad ? finite(1).range(0, 1) : r.label ? finite(1).nan(1) : finite(1).inf(1));
    t.mark(TensorRole::kLoss, "loss", l);
    t.lr(!in_ramp ? r.lr_after : r.from * std::pow(r.factor, step) * (step == r.uneven ? 1.1 : 1));
    t.end_step(loss);
  }
  return analysis_of(t);
}

TEST(LrRamp, is_steps_whose_rate_grows_by_one_factor_and_by_far) {
  const Analysis a = ramping({.overflows = 40, .after = 0});
  ASSERT_TRUE(a.lr_ramp);
  EXPECT_EQ(a.lr_ramp->first_step, 0U);
  EXPECT_EQ(a.lr_ramp->last_step, 39U);
  EXPECT_EQ(a.lr_ramp->points.size(), 40U);
  ASSERT_TRUE(a.lr_ramp->stops_at);
  EXPECT_EQ(*a.lr_ramp->stops_at, 31U) << "a smoothed loss of 4 times its best: 1 is not enough, 200 is";
  EXPECT_TRUE(a.lr_ramp->suggestion);
  EXPECT_EQ(table(a), "clean\n");
}

TEST(LrRamp, needs_20_steps_a_hundredfold_and_one_factor) {
  EXPECT_FALSE(ramping({.steps = 19, .diverges = 40, .overflows = 40, .after = 0}).lr_ramp);
  EXPECT_TRUE(ramping({.steps = 20, .diverges = 40, .overflows = 40, .after = 0}).lr_ramp);
  EXPECT_FALSE(ramping({.factor = 1.1, .diverges = 40, .overflows = 40, .after = 0}).lr_ramp) << "41 times";
  EXPECT_FALSE(ramping({.steps = 30, .diverges = 40, .overflows = 40, .after = 0, .uneven = 15}).lr_ramp);
  const Analysis late = ramping({.steps = 40, .diverges = 40, .overflows = 40, .after = 0, .uneven = 5});
  ASSERT_TRUE(late.lr_ramp);
  EXPECT_EQ(late.lr_ramp->first_step, 6U);
}

TEST(LrRamp, that_ruins_weights_which_are_trained_on_is_the_fault_whatever_overflowed) {
  const Analysis a = ramping({});
  EXPECT_EQ(table(a), "exploding | - | - | loss | step 35 | appear | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_TRUE(a.findings[0].title.starts_with("A learning rate finder left its ruined weights")) << a.findings[0].title;
  EXPECT_NE(a.findings[0].explanation.find("by design"), std::string::npos);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "restore-after-finder");
  EXPECT_NE(a.findings[0].evidence.at(0).find("mse_loss in <loss>"), std::string::npos);
}

TEST(LrRamp, that_restores_or_ends_the_run_is_no_fault) {
  for (const Ramp& ramp : {Ramp{.loss_after = 2}, Ramp{.after = 0}}) {
    const Analysis a = ramping(ramp);
    EXPECT_EQ(verdict_status_name(a.verdict.status), "clean") << a.verdict.headline;
    ASSERT_EQ(a.findings.size(), 1U);
    EXPECT_EQ(a.findings[0].severity, Severity::kInfo);
    EXPECT_TRUE(a.findings[0].benign);
    EXPECT_NE(a.findings[0].title.find("by design"), std::string::npos);
  }
}

TEST(LrRamp, that_runs_on_over_bad_losses_and_restores_nothing_is_a_schedule_and_the_fault) {
  const Analysis a = ramping({.steps = 44, .after = 0});
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(table(a), "exploding | - | - | loss | step 35 | appear | observed\n");
  EXPECT_TRUE(a.findings[0].title.starts_with("Training diverged under a learning rate that only grew")) << a.findings[0].title;
  EXPECT_EQ(a.findings[0].explanation.find("by design"), std::string::npos);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "bound-schedule");
}

TEST(LrRamp, that_stops_soon_or_puts_its_weights_back_is_a_finder_still) {
  for (const Ramp& ramp : {Ramp{.steps = 43, .after = 0}, Ramp{.steps = 60, .after = 5, .loss_after = 2}}) {
    const Analysis a = ramping(ramp);
    EXPECT_EQ(verdict_status_name(a.verdict.status), "clean") << a.verdict.headline;
  }
}

TEST(LrRamp, excuses_nothing_that_overflows_before_the_loss_has_diverged) {
  const std::string overflow = "overflow | mse_loss | <loss> | loss | step 20 | appear | observed\n";
  EXPECT_EQ(table(ramping({.overflows = 20})), overflow);
  EXPECT_EQ(table(ramping({.diverges = 40, .overflows = 20, .after = 0})), overflow);
}

TEST(LrRamp, excuses_nothing_that_a_rate_does_not_make) {
  for (const Ramp& ramp : {Ramp{.label = true}, Ramp{.after = 0, .label = true}}) {
    const Analysis a = ramping(ramp);
    EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
    EXPECT_EQ(a.findings.at(0).cls, FindingClass::kBadInput) << table(a);
  }
}

TEST(LrRamp, says_nothing_of_divergence_where_losses_are_below_0) {
  const Analysis a = ramping({.after = 0, .sign = -1});
  EXPECT_FALSE(a.lr_ramp->stops_at);
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kOverflow) << table(a);
}

TEST(LrRamp, excuses_nothing_after_training_has_gone_on_soundly) {
  const Analysis a = ramping({.overflows = 40, .after = 20, .loss_after = 2, .late = 55});
  EXPECT_EQ(table(a), "overflow | mse_loss | <loss> | loss | step 55 | appear | observed\n");
}

TEST(LrRamp, that_goes_on_at_its_last_rate_is_a_warm_up_and_excuses_nothing) {
  const Analysis a = ramping({.lr_after = 1e-6 * std::pow(2, 39)});
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kOverflow) << table(a);
}

TEST(LrRamp, excuses_nothing_where_there_is_none) {
  EXPECT_EQ(table(ramping({.factor = 1.05})), "overflow | mse_loss | <loss> | loss | step 35 | appear | observed\n");
}

}  // namespace
}  // namespace nanhunt
