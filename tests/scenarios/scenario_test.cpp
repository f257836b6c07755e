// SPDX-License-Identifier: Apache-2.0
// The promise of the product, on real training: every planted fault is named (op, module, phase, step, class),
// every repaired twin is silent, and no answer depends on what modules are called.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/scenarios/hunt_scenario.h"
#include "tests/support/scenario_names.h"

namespace nanhunt {
namespace {

using scenarios::Scenario;
using testing_support::expect_named;
using testing_support::Hunt;
using testing_support::HuntOptions;
using testing_support::is_clean;
using testing_support::is_planted;
using testing_support::scenario_case;
using testing_support::scenarios_where;

class PlantedFault : public testing::TestWithParam<std::string> {};
class RepairedTwin : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, PlantedFault, testing::ValuesIn(scenarios_where(is_planted)), scenario_case);
INSTANTIATE_TEST_SUITE_P(Scenarios, RepairedTwin, testing::ValuesIn(scenarios_where(is_clean)), scenario_case);

TEST_P(PlantedFault, is_named_with_op_module_phase_step_and_class) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  const Hunt hunt = testing_support::hunt_scenario(scenario);
  expect_named(hunt, scenario.expected);
}

TEST_P(PlantedFault, is_named_the_same_when_all_module_names_are_random) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  for (std::uint64_t seed : {11u, 12u}) {
    HuntOptions options;
    options.rename_seed = seed;
    const Hunt hunt = testing_support::hunt_scenario(scenario, options);
    ASSERT_FALSE(hunt.renamed.empty());
    expect_named(hunt, scenario.expected);
  }
}

TEST_P(PlantedFault, has_a_fix_that_was_seen_to_work_on_this_very_run) {
  if (scenarios::find_scenario(GetParam())->expected.status == VerdictStatus::kCalibrating) return;  // nothing to fix
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  HuntOptions options;
  options.verify_fixes = true;
  const Hunt hunt = testing_support::hunt_scenario(scenario, options);
  ASSERT_FALSE(hunt.analysis.findings.empty());
  const auto& advice = hunt.analysis.findings.front().advice;
  EXPECT_TRUE(std::any_of(advice.begin(), advice.end(), [](const Advice& a) { return a.verified == true; }));
}

// Classes that have no op whose bad result could be computed again, or that are not told by one.
bool can_be_proved(const scenarios::Expectation& expected) {
  return expected.op && *expected.op != "<batch>" && expected.cls != FindingClass::kBadState &&
         expected.cls != FindingClass::kApiMisuse && expected.cls != FindingClass::kUpdateLoss &&
         expected.cls != FindingClass::kUnderflow &&
         expected.status == VerdictStatus::kFault;
}

TEST_P(PlantedFault, is_proved_by_counterfactuals_and_stays_what_it_is) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  if (!can_be_proved(scenario.expected)) return;
  HuntOptions options;
  options.probe = true;
  const Hunt hunt = testing_support::hunt_scenario(scenario, options);
  expect_named(hunt, scenario.expected);
  EXPECT_EQ(confidence_name(hunt.analysis.findings.front().confidence), "proved");
}

TEST_P(RepairedTwin, is_silent) {
  const Scenario& scenario = *scenarios::find_scenario(GetParam());
  const Hunt hunt = testing_support::hunt_scenario(scenario);
  EXPECT_EQ(verdict_status_name(hunt.analysis.verdict.status), "clean") << hunt.analysis.verdict.headline;
  for (const Finding& finding : hunt.analysis.findings) {
    EXPECT_EQ(severity_name(finding.severity), "info") << finding.title;
  }
}

TEST(Scenarios, every_planted_fault_has_a_repaired_twin) {
  std::set<std::string> names;
  for (const Scenario& s : scenarios::all_scenarios()) EXPECT_TRUE(names.insert(s.name).second) << s.name;
  for (const Scenario& s : scenarios::all_scenarios()) {
    if (s.expected.status != VerdictStatus::kClean) {
      EXPECT_TRUE(names.contains(s.name + "-fixed")) << s.name;
    }
  }
}

TEST(Scenarios, advice_of_adam_eps_tells_a_cure_from_a_silencer) {
  // given the pure fp16 Adam run and its fixes tried on it
  HuntOptions options;
  options.verify_fixes = true;
  const Hunt hunt = testing_support::hunt_scenario(*scenarios::find_scenario("adam-eps"), options);
  // then fp32 masters are a cure, and a raised eps stops the NaN without being one
  std::optional<bool> masters, raised;
  for (const Advice& advice : hunt.analysis.findings.at(0).advice) {
    if (advice.id == "fp32-masters") masters = advice.verified;
    if (advice.id == "eps-1e-4") raised = advice.verified;
  }
  EXPECT_EQ(masters, true);
  EXPECT_EQ(raised, false);
}

}  // namespace
}  // namespace nanhunt
