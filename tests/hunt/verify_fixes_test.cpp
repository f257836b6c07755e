// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/hunt/hunt.h"
#include "tests/support/silent_recorder.h"

namespace nanhunt::hunt {
namespace {

class PlannedReplay final : public Replay {
 public:
  std::vector<Fix> fixes() const override { return {{"a", "first"}, {"b", "second"}}; }
  ExperimentRecord try_fix(const Fix& fix, std::uint32_t, std::uint32_t further_steps) override {
    asked_further = further_steps;
    if (fix.id == throws) throw std::invalid_argument("[mm] expected 4 columns, got 3");
    return outcomes.at(fix.id);
  }
  std::map<std::string, ExperimentRecord> outcomes;
  std::uint32_t asked_further = 0;
  std::string throws;  // id of the fix whose trial does
};

class ExperimentCollector final : public testing_support::SilentRecorder {
 public:
  void on_experiment(const ExperimentRecord& e) noexcept override { experiments.push_back(e); }
  std::vector<ExperimentRecord> experiments;
};

ExperimentRecord outcome(bool finite, std::uint32_t further, double factor) {
  ExperimentRecord record;
  record.finite = finite;
  record.further_steps = further;
  record.update_factor = factor;
  return record;
}

TEST(VerifyFixes, every_fix_is_tried_and_recorded_in_order) {
  // given
  PlannedReplay replay;
  replay.outcomes = {{"a", outcome(true, 50, 1.01)}, {"b", outcome(true, 50, 54)}};
  ExperimentCollector recorder;
  // when
  const auto tried = verify_fixes(replay, 7, recorder).experiments;
  // then
  EXPECT_EQ(replay.asked_further, kFurtherSteps);
  ASSERT_EQ(tried.size(), 2u);
  EXPECT_EQ(recorder.experiments, tried);
  EXPECT_EQ(tried[0].fix, "a");
  EXPECT_EQ(tried[0].description, "first");
  EXPECT_EQ(tried[0].step, 7u);
  EXPECT_TRUE(tried[0].verified);
  EXPECT_FALSE(tried[1].verified);
}

TEST(VerifyFixes, only_a_finite_long_enough_and_right_sized_run_verifies) {
  const auto verified = [](const ExperimentRecord& result) {
    PlannedReplay replay;
    replay.outcomes = {{"a", result}, {"b", result}};
    ExperimentCollector recorder;
    return verify_fixes(replay, 0, recorder).experiments.at(0).verified;
  };
  EXPECT_TRUE(verified(outcome(true, 50, 1)));
  EXPECT_TRUE(verified(outcome(true, 50, 1.25)));
  EXPECT_FALSE(verified(outcome(false, 50, 1)));
  EXPECT_FALSE(verified(outcome(true, 49, 1)));
  EXPECT_FALSE(verified(outcome(true, 50, 1.26)));
  EXPECT_FALSE(verified(outcome(true, 50, 0)));
  EXPECT_FALSE(verified(outcome(true, 50, std::nan(""))));
  EXPECT_FALSE(verified(outcome(true, 50, std::numeric_limits<double>::infinity())));
}

TEST(VerifyFixes, a_trial_that_throws_is_said_and_the_other_fixes_are_still_tried) {
  // given
  PlannedReplay replay;
  replay.outcomes = {{"a", outcome(true, 50, 1.01)}, {"b", outcome(true, 50, 1.01)}};
  replay.throws = "a";
  ExperimentCollector recorder;
  // when
  const Trials trials = verify_fixes(replay, 7, recorder);
  // then nothing is claimed of the first
  ASSERT_EQ(trials.experiments.size(), 1u);
  EXPECT_EQ(trials.experiments[0].fix, "b");
  EXPECT_TRUE(trials.experiments[0].verified);
  EXPECT_EQ(recorder.experiments, trials.experiments);
  EXPECT_EQ(trials.broken_off, std::vector<std::string>{"a: [mm] expected 4 columns, got 3"});
}

TEST(VerifyFixes, trials_that_end_leave_nothing_to_say) {
  PlannedReplay replay;
  replay.outcomes = {{"a", outcome(false, 0, 0)}, {"b", outcome(true, 50, 1)}};
  ExperimentCollector recorder;
  const Trials trials = verify_fixes(replay, 0, recorder);
  EXPECT_EQ(trials.experiments.size(), 2u);
  EXPECT_TRUE(trials.broken_off.empty());
}

}  // namespace
}  // namespace nanhunt::hunt
