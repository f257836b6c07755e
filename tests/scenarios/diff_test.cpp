// SPDX-License-Identifier: Apache-2.0
// A fault compared with its repaired twin: bad numbers part the two at the origin of the fault.
#include <gtest/gtest.h>

#include <algorithm>

#include "hooks/engine/engine_hooks.h"
#include "src/analyze/diff/diff.h"
#include "tests/support/scenario_names.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt {
namespace {

using scenarios::Scenario;

void record(const Scenario& scenario, const std::string& run_dir, std::uint32_t steps) {
  RecorderOptions options;
  options.run_dir = run_dir;
  auto recorder = Recorder::open(options, RunInfo{});
  ASSERT_TRUE(recorder) << recorder.status().message();
  {
    hooks::EngineWatch watch(**recorder);
    scenarios::ScenarioRun run = scenario.make({});
    for (std::uint32_t i = 0; i < steps; ++i) run.trainer->step();
  }
  ASSERT_TRUE((*recorder)->close());
}

bool is_fault_of_one_op(const Scenario& s) {
  const bool in_numbers = s.expected.op && s.expected.op->front() != '<' && *s.expected.op != "clip_grad_norm_";
  const bool bad_numbers = in_numbers && s.expected.cls != FindingClass::kUpdateLoss &&
                           s.expected.cls != FindingClass::kUnderflow;  // nothing is bad there
  return s.expected.status == VerdictStatus::kFault && bad_numbers;
}

class DiffWithTwin : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, DiffWithTwin,
                         testing::ValuesIn(testing_support::scenarios_where(is_fault_of_one_op)),
                         testing_support::scenario_case);

TEST_P(DiffWithTwin, first_has_bad_numbers_of_its_own_at_the_origin) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  const testing_support::TempDir dir;
  record(scenario, dir.path("fault"), scenario.expected.step + 2);
  record(*scenarios::find_scenario(GetParam() + "-fixed"), dir.path("twin"), scenario.expected.step + 2);
  const auto fault = find_attempts(dir.path("fault")), twin = find_attempts(dir.path("twin"));
  ASSERT_TRUE(fault && twin);
  const auto result = analyze::diff_attempts(fault->front(), twin->front());
  ASSERT_TRUE(result) << result.status().message();
  const auto& bad = result->first[static_cast<std::size_t>(analyze::DiffKind::kBadness)];
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->step, scenario.expected.step);
  EXPECT_EQ(phase_name(bad->phase), phase_name(scenario.expected.phase));
  EXPECT_EQ(bad->op, *scenario.expected.op);
  EXPECT_EQ(bad->module, scenario.expected.module.value_or(""));
}

TEST(DiffOfScenarios, finds_nothing_between_two_runs_of_one_seed) {
  const Scenario& scenario = *scenarios::find_scenario("scaler-calibration");
  const testing_support::TempDir dir;
  for (const char* run : {"a", "b"}) record(scenario, dir.path(run), 10);
  const auto a = find_attempts(dir.path("a")), b = find_attempts(dir.path("b"));
  ASSERT_TRUE(a && b);
  const auto result = analyze::diff_attempts(a->front(), b->front(), {.tolerance = 0});
  ASSERT_TRUE(result) << result.status().message();
  EXPECT_EQ(result->first_health(), nullptr);
  EXPECT_EQ(result->steps_compared, 10U);
}

}  // namespace
}  // namespace nanhunt
