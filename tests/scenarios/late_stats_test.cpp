// SPDX-License-Identifier: Apache-2.0
// Every scenario on the emulated device, every op watched without a wait: what is named must be what the scenario promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/analyzer.h"
#include "nanhunt/recorder.h"
#include "tests/engine/device/device_support.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt {
namespace {

using scenarios::Scenario;

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> scenario_names() {
  std::vector<std::string> names;
  for (const Scenario& s : scenarios::all_scenarios()) names.push_back(s.name);
  return names;
}

class LateScenario : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, LateScenario, testing::ValuesIn(scenario_names()), case_name);

TEST_P(LateScenario, keeps_its_contract_when_statistics_come_later) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  engine::testing::ScopedEmulatedDevice emulated;
  const testing_support::TempDir dir;
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = "emulated";
  info.level = "ops";
  auto recorder = Recorder::open({.run_dir = dir.path()}, info);
  ASSERT_TRUE(recorder);
  {
    scenarios::ScenarioConfig config;
    config.device = engine::testing::kEmulated;
    scenarios::ScenarioRun run = scenario.make(config);
    hooks::TrainerWatch watch(*run.trainer, **recorder,
                              {.level = hooks::WatchLevel::kOps, .device_stats = hooks::DeviceStats::kLate});
    for (std::uint32_t i = 0; i < scenario.steps; ++i) run.trainer->step();
  }
  ASSERT_TRUE((*recorder)->close());
  EXPECT_EQ((*recorder)->counters().late_lost, 0U);
  const auto analysis = analyze_run(dir.path());
  ASSERT_TRUE(analysis) << analysis.status().message();
  const scenarios::Expectation& expected = scenario.expected;
  EXPECT_EQ(verdict_status_name(analysis->verdict.status), verdict_status_name(expected.status)) << analysis->verdict.headline;
  if (expected.status == VerdictStatus::kClean) {
    for (const Finding& finding : analysis->findings) EXPECT_EQ(severity_name(finding.severity), "info") << finding.title;
    return;
  }
  ASSERT_FALSE(analysis->findings.empty()) << analysis->verdict.headline;
  const Finding& finding = analysis->findings.front();
  EXPECT_EQ(finding_class_name(finding.cls), finding_class_name(expected.cls)) << finding.title;
  EXPECT_EQ(phase_name(finding.place.phase), phase_name(expected.phase));
  EXPECT_EQ(finding.place.step, expected.step);
  EXPECT_EQ(finding.place.op, expected.op);
  EXPECT_EQ(finding.place.module, expected.module);
  for (const std::int64_t sample : expected.samples) {
    EXPECT_NE(std::find(finding.samples.begin(), finding.samples.end(), sample), finding.samples.end())
        << "sample " << sample << " is not named";
  }
}

}  // namespace
}  // namespace nanhunt
