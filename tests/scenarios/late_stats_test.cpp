// SPDX-License-Identifier: Apache-2.0
// Every scenario on the emulated device, every op watched without a wait: what is told must be what is told with a wait
// at every op, word for word, and what the scenario promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/engine/device/device_support.h"
#include "tests/scenarios/flipped_run.h"
#include "tests/scenarios/hunt_scenario.h"
#include "tests/scenarios/told.h"
#include "tests/support/scenario_names.h"

namespace nanhunt {
namespace {

using engine::testing::kEmulated;
using engine::testing::ScopedEmulatedDevice;
using hooks::DeviceStats;
using scenarios::Scenario;
using testing_support::FlippedRun;
using testing_support::Hunt;
using testing_support::hunt_scenario;
using testing_support::told;
using testing_support::train_flipped;
using testing_support::Where;

class DeferredScenario : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, DeferredScenario, testing::ValuesIn(testing_support::every_scenario()),
                         testing_support::scenario_case);

TEST_P(DeferredScenario, is_told_as_with_a_wait_at_every_op_and_keeps_its_contract) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  const auto hunt_with = [&](DeviceStats stats) {
    const ScopedEmulatedDevice emulated;
    testing_support::HuntOptions options;
    options.device = kEmulated;
    options.device_stats = stats;
    return hunt_scenario(scenario, options);
  };
  const Hunt late = hunt_with(DeviceStats::kDeferred);
  EXPECT_GT(late.counters.deferred_readings, 100U);
  EXPECT_EQ(late.counters.deferred_lost, 0U);
  EXPECT_EQ(told(late.analysis), told(hunt_with(DeviceStats::kSync).analysis));
  if (scenario.expected.status != VerdictStatus::kClean) {
    testing_support::expect_named(late, scenario.expected);
    return;
  }
  EXPECT_EQ(verdict_status_name(late.analysis.verdict.status), "clean") << late.analysis.verdict.headline;
  for (const Finding& finding : late.analysis.findings)
    EXPECT_EQ(severity_name(finding.severity), "info") << finding.title;
}

FlippedRun train_on_device(Where where, DeviceStats stats) {
  const ScopedEmulatedDevice emulated;
  testing_support::FlipOptions options;
  options.device = kEmulated;
  options.device_stats = stats;
  return train_flipped(where, options);
}

TEST(DeferredFlip, of_a_bit_is_told_as_with_a_wait_at_every_op_and_not_blamed_on_its_reader) {
  for (const Where where : {Where::kParameter, Where::kIntermediate}) {
    const FlippedRun late = train_on_device(where, DeviceStats::kDeferred);
    EXPECT_EQ(late.counters.deferred_lost, 0U);
    ASSERT_FALSE(late.analysis.findings.empty());
    EXPECT_EQ(finding_class_name(late.analysis.findings.front().cls), finding_class_name(FindingClass::kCorruption));
    EXPECT_EQ(told(late.analysis), told(train_on_device(where, DeviceStats::kSync).analysis));
    EXPECT_EQ(told(late.analysis), told(train_flipped(where).analysis));
  }
}

TEST(DeferredFlip, that_never_happens_is_silent) {
  const FlippedRun late = train_on_device(Where::kNowhere, DeviceStats::kDeferred);
  EXPECT_EQ(verdict_status_name(late.analysis.verdict.status), "clean");
  EXPECT_TRUE(late.analysis.findings.empty());
}

}  // namespace
}  // namespace nanhunt
