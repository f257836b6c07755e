// SPDX-License-Identifier: Apache-2.0
// Each fault is named, and nothing is said of the same run without it.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/campaign/run.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::campaign {
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.kind << ", " << fault.form; }
void PrintTo(const Healthy& run, std::ostream* out) { *out << run.kind; }

namespace {

using testing_support::TempDir;

std::string test_name(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return text;
}

class PlantedFault : public testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Campaign, PlantedFault, testing::ValuesIn(all_faults()),
                         [](const auto& one) { return test_name(one.param.kind + "_" + one.param.form); });

TEST_P(PlantedFault, is_named_and_its_repaired_twin_is_not) {
  const Fault& fault = GetParam();
  const TempDir folder;
  // given the run without the fault, of which nothing is said
  const RunLog clean = train_and_judge(fault.settings, fault.plan, false, folder.path("clean"));
  EXPECT_FALSE(clean.answer && clean.answer->severity == Severity::kFault) << text_of(clean.answer);
  // and the run with it, to which it did harm by its numbers and not by what the analyzer says
  const RunLog faulty = train_and_judge(fault.settings, fault.plan, true, folder.path("faulty"));
  EXPECT_TRUE(did_harm(faulty, clean));
  Expected expected = fault.expected;
  if (expected.cls == FindingClass::kExploding) expected.step = faulty.first_bad_step;
  // then it is named
  EXPECT_TRUE(origin_right(expected, faulty.answer)) << text_of(faulty.answer);
  EXPECT_TRUE(class_right(expected, faulty.answer)) << text_of(faulty.answer);
}

class HealthyRun : public testing::TestWithParam<Healthy> {};
INSTANTIATE_TEST_SUITE_P(Campaign, HealthyRun, testing::ValuesIn(healthy_runs()),
                         [](const auto& one) { return test_name(one.param.kind); });

TEST_P(HealthyRun, is_not_called_faulty) {
  const TempDir folder;
  const RunLog log = train_and_judge(GetParam().settings, GetParam().plan, false, folder.path("run"));
  EXPECT_FALSE(log.answer && log.answer->severity == Severity::kFault) << text_of(log.answer);
}

}  // namespace
}  // namespace nanhunt::campaign
