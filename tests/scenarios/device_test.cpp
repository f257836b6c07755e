// SPDX-License-Identifier: Apache-2.0
// `nanhunt train SCENARIO --device ...` tells what it tells on the CPU: every scenario and every repaired twin. On the
// emulated device, whose kernels are the GPU's, everything that the analyzer says must be the same; on a GPU, where
// products round in another order, every scenario must keep its contract.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/device/device_support.h"
#include "tests/scenarios/hunt_scenario.h"
#include "tests/scenarios/told.h"
#include "tests/support/scenario_names.h"

namespace nanhunt {
namespace {

using engine::testing::kEmulated;
using engine::testing::ScopedEmulatedDevice;
using scenarios::Scenario;
using testing_support::Hunt;
using testing_support::hunt_scenario;
using testing_support::HuntOptions;
using testing_support::told;

constexpr engine::Device kCuda{engine::DeviceKind::kCuda, 0};

class OnEmulatedDevice : public testing::TestWithParam<std::string> {
 protected:
  static void expect_the_same(HuntOptions options) {
    const Scenario& scenario = *scenarios::find_scenario(GetParam());
    const std::string expected = told(hunt_scenario(scenario, options).analysis);
    const ScopedEmulatedDevice emulated;
    options.device = kEmulated;
    EXPECT_EQ(told(hunt_scenario(scenario, options).analysis), expected);
  }
};
INSTANTIATE_TEST_SUITE_P(Scenarios, OnEmulatedDevice, testing::ValuesIn(testing_support::every_scenario()),
                         testing_support::scenario_case);

TEST_P(OnEmulatedDevice, is_told_as_on_the_cpu) { expect_the_same({}); }

TEST_P(OnEmulatedDevice, is_computed_again_and_mended_as_on_the_cpu) {
  HuntOptions options;
  options.probe = true;
  options.verify_fixes = true;
  expect_the_same(options);
}

class OnGpuScenarios : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = engine::why_unusable(kCuda); !why.empty()) GTEST_SKIP() << "no GPU to test on: " << why;
  }
  static void expect_contract() {
    const Scenario& scenario = *scenarios::find_scenario(GetParam());
    HuntOptions options;
    options.device = kCuda;
    const Hunt hunt = hunt_scenario(scenario, options);
    if (scenario.expected.status != VerdictStatus::kClean) {
      testing_support::expect_named(hunt, scenario.expected);
      return;
    }
    EXPECT_EQ(verdict_status_name(hunt.analysis.verdict.status), "clean") << hunt.analysis.verdict.headline;
    for (const Finding& finding : hunt.analysis.findings)
      EXPECT_EQ(severity_name(finding.severity), "info") << finding.title;
  }
};
INSTANTIATE_TEST_SUITE_P(Scenarios, OnGpuScenarios, testing::ValuesIn(testing_support::every_scenario()),
                         testing_support::scenario_case);

TEST_P(OnGpuScenarios, keeps_its_contract) { expect_contract(); }

}  // namespace
}  // namespace nanhunt
