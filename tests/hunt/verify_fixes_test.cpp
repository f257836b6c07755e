// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "src/hunt/hunt.h"

namespace nanhunt::hunt {
namespace {

class PlannedReplay final : public Replay {
 public:
  std::vector<Fix> fixes() const override { return {{"a", "first"}, {"b", "second"}}; }
  ExperimentRecord try_fix(const Fix& fix, std::uint32_t, std::uint32_t further_steps) override {
    asked_further = further_steps;
    return outcomes.at(fix.id);
  }
  std::map<std::string, ExperimentRecord> outcomes;
  std::uint32_t asked_further = 0;
};

class ExperimentCollector final : public Recorder {
 public:
  void on_op(const OpEvent&) noexcept override {}
  void on_mark(const MarkEvent&) noexcept override {}
  void on_batch(const BatchEvent&) noexcept override {}
  void on_scaler(const ScalerEvent&) noexcept override {}
  void on_step_end(const StepEvent&) noexcept override {}
  void on_storage_released(std::uint64_t) noexcept override {}
  void on_experiment(const ExperimentRecord& e) noexcept override { experiments.push_back(e); }
  RecorderCounters counters() const override { return {}; }
  std::uint64_t anomalies() const override { return 0; }
  const std::string& attempt_dir() const override { return dir_; }
  Status flush() override { return {}; }
  Status close() override { return {}; }
  std::vector<ExperimentRecord> experiments;

 private:
  std::string dir_;
};

ExperimentRecord outcome(bool finite, std::uint32_t further, double factor) {
  ExperimentRecord record;
  record.finite = finite;
  record.further_steps = further;
  record.update_factor = factor;
  return record;
}

TEST(VerifyFixes, EveryFixIsTriedAndRecordedInOrder) {
  // given
  PlannedReplay replay;
  replay.outcomes = {{"a", outcome(true, 50, 1.01)}, {"b", outcome(true, 50, 54)}};
  ExperimentCollector recorder;
  // when
  const auto tried = verify_fixes(replay, 7, recorder);
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

TEST(VerifyFixes, OnlyAFiniteLongEnoughAndRightSizedRunVerifies) {
  const auto verified = [](const ExperimentRecord& result) {
    PlannedReplay replay;
    replay.outcomes = {{"a", result}, {"b", result}};
    ExperimentCollector recorder;
    return verify_fixes(replay, 0, recorder)[0].verified;
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

}  // namespace
}  // namespace nanhunt::hunt
