// SPDX-License-Identifier: Apache-2.0
// A bit flips in a training run, in memory and told to nobody: what is said of it.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/scenarios/flipped_run.h"

namespace nanhunt {
namespace {

using testing_support::FlippedRun;
using testing_support::kFlipStep;
using testing_support::train_flipped;
using testing_support::Where;

void expect_headline(const FlippedRun& run, FindingClass cls, const std::optional<std::string>& op,
                     const std::optional<std::string>& module) {
  ASSERT_FALSE(run.analysis.findings.empty()) << run.analysis.verdict.headline;
  const Finding& f = run.analysis.findings.front();
  EXPECT_EQ(severity_name(f.severity), "fault") << f.title;
  EXPECT_EQ(finding_class_name(f.cls), finding_class_name(cls)) << f.title;
  EXPECT_EQ(f.place.step, kFlipStep);
  EXPECT_EQ(f.place.op, op);
  EXPECT_EQ(f.place.module, module);
}

TEST(Flip, of_a_bit_of_a_parameter_is_corruption_of_that_parameter) {
  const FlippedRun run = train_flipped(Where::kParameter);
  expect_headline(run, FindingClass::kCorruption, "<state>", run.parameter);
}

TEST(Flip, that_never_happens_is_silent) {
  const FlippedRun run = train_flipped(Where::kNowhere);
  EXPECT_EQ(verdict_status_name(run.analysis.verdict.status), "clean");
  EXPECT_TRUE(run.analysis.findings.empty());
}

TEST(FlipInPassing, is_corruption_of_the_output) {
  const FlippedRun run = train_flipped(Where::kIntermediate);
  ASSERT_FALSE(run.op.empty());
  expect_headline(run, FindingClass::kCorruption, run.op, run.module);
  EXPECT_EQ(run.analysis.findings.front().place.phase, Phase::kForward);
}

}  // namespace
}  // namespace nanhunt
