// SPDX-License-Identifier: Apache-2.0
// The README's example does what the README says of it.
#include "tests/structure/readme_example.h"

#include <gtest/gtest.h>

#include "nanhunt/analyzer.h"
#include "tests/support/temp_dir.h"

namespace {

TEST(ReadmeExample, names_the_step_and_the_op_at_which_the_weight_overflowed) {
  // given nine steps of growth by 4: 4^8 = 65536 is the first power that fp16 cannot hold, in step 7
  const nanhunt::testing_support::TempDir dir;
  const std::string run = dir.path("run");
  const nanhunt::Status recorded = watch_growth(run, 9);
  ASSERT_TRUE(recorded.is_ok()) << recorded.message();

  // when
  const auto analysis = nanhunt::analyze_run(run);

  // then
  ASSERT_TRUE(analysis.is_ok()) << analysis.status().message();
  EXPECT_EQ(analysis->verdict.status, nanhunt::VerdictStatus::kFault) << analysis->verdict.headline;
  ASSERT_FALSE(analysis->findings.empty());
  const nanhunt::Finding& finding = analysis->findings.front();
  EXPECT_EQ(nanhunt::finding_class_name(finding.cls), "overflow");
  EXPECT_EQ(finding.place.step, 7u);
  EXPECT_EQ(finding.place.op, "mul_");
  EXPECT_EQ(finding.place.module, "weight");
  EXPECT_EQ(finding.place.phase, nanhunt::Phase::kOptimizer);
}

TEST(ReadmeExample, is_clean_when_it_stops_in_time) {
  const nanhunt::testing_support::TempDir dir;
  const std::string run = dir.path("run");
  const nanhunt::Status recorded = watch_growth(run, 7);
  ASSERT_TRUE(recorded.is_ok()) << recorded.message();

  const auto analysis = nanhunt::analyze_run(run);

  ASSERT_TRUE(analysis.is_ok()) << analysis.status().message();
  EXPECT_EQ(analysis->verdict.status, nanhunt::VerdictStatus::kClean) << analysis->verdict.headline;
}

}  // namespace
