// SPDX-License-Identifier: Apache-2.0
// The examples of README.md and include/GUIDE.md do what is said of them.
#include "tests/structure/readme_example.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

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

// A loss that is the log of one number, by the README's example.
std::string class_and_op_of_a_loss_of_log(float number) {
  const nanhunt::testing_support::TempDir dir;
  nanhunt::RecorderOptions options;
  options.run_dir = dir.path("run");
  nanhunt::RunInfo info;
  info.level = "ops";
  auto opened = nanhunt::Recorder::open(options, info);
  if (!opened) return opened.status().message();
  const std::int64_t sizes[] = {1}, strides[] = {1};
  const float loss = std::log(number);
  nanhunt::ValueView read, made;
  read.tensor = {&number, nanhunt::DType::kF32, sizes, strides};
  read.storage = 1;
  made.tensor = {&loss, nanhunt::DType::kF32, sizes, strides};
  made.storage = 2;
  record_log(**opened, 0, read, made);
  nanhunt::MarkEvent mark;
  mark.kind = nanhunt::TensorRole::kLoss;
  mark.path = "loss";
  mark.value = made;
  (*opened)->on_mark(mark);
  (*opened)->on_step_end({});
  const nanhunt::Status closed = (*opened)->close();
  if (!closed.is_ok()) return closed.message();
  const auto analysis = nanhunt::analyze_run(options.run_dir);
  if (!analysis) return analysis.status().message();
  if (analysis->findings.empty()) return "nothing";
  const nanhunt::Finding& finding = analysis->findings.front();
  return std::string(nanhunt::finding_class_name(finding.cls)) + " " + finding.place.op.value_or("?");
}

TEST(ReadmeExample, records_what_the_analyzer_needs_to_name_the_op) {
  EXPECT_EQ(class_and_op_of_a_loss_of_log(0.0f), "divide_by_zero log");
  EXPECT_EQ(class_and_op_of_a_loss_of_log(2.0f), "nothing");
}

}  // namespace
