// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Check, a_clean_run_is_one_line_and_status_0) {
  const std::string run = make_folder();
  write_sample_trace(run, {.bad = false});
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_THAT(check.out, StartsWith("clean: "));
  EXPECT_EQ(std::count(check.out.begin(), check.out.end(), '\n'), 1);
  EXPECT_EQ(check.err, "");
}

TEST(Check, a_fault_names_class_op_module_phase_and_step) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 1) << check.err;
  EXPECT_THAT(check.out, StartsWith("fault: invalid at sqrt in fc1, phase loss, step 2: "));
}

TEST(Check, json_holds_the_same) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome check = run_nanhunt({"check", run, "--json"});
  const json answer = json::parse(check.out);
  EXPECT_EQ(check.status, 1);
  EXPECT_EQ(answer["schema"], "nanhunt.check");
  EXPECT_EQ(answer["status"], "fault");
  EXPECT_EQ(answer["exit_status"], 1);
  EXPECT_EQ(answer["damaged"], false);
  EXPECT_EQ(answer["finding"]["class"], "invalid");
  EXPECT_EQ(answer["finding"]["op"], "sqrt");
  EXPECT_EQ(answer["finding"]["module"], "fc1");
  EXPECT_EQ(answer["finding"]["phase"], "loss");
  EXPECT_EQ(answer["finding"]["step"], 2);
}

TEST(Check, a_run_folder_in_which_nothing_was_recorded_is_inconclusive) {
  const std::string run = make_folder();
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 5);
  EXPECT_THAT(check.out, StartsWith("inconclusive: "));
  EXPECT_EQ(json::parse(run_nanhunt({"check", run, "--json"}).out)["status"], "inconclusive");
}

TEST(Check, a_trace_without_records_is_inconclusive) {
  const std::string run = make_folder();
  write_empty_trace(run);
  EXPECT_EQ(run_nanhunt({"check", run}).status, 5);
}

TEST(Check, a_path_that_does_not_exist_cannot_be_read) {
  const Outcome check = run_nanhunt({"check", make_folder() + "/nowhere"});
  EXPECT_EQ(check.status, 3);
  EXPECT_EQ(check.out, "");
  EXPECT_THAT(check.err, HasSubstr("nowhere"));
}

TEST(Check, the_newest_attempt_counts) {
  const std::string run = make_folder();
  write_sample_trace(run);
  write_sample_trace(run, {.bad = false});
  EXPECT_EQ(run_nanhunt({"check", run}).status, 0);
  EXPECT_EQ(run_nanhunt({"check", run + "/rank-00000/attempt-0"}).status, 1);
}

TEST(Check, a_single_segment_can_be_named) {
  const std::string run = make_folder();
  const std::string segment = write_sample_trace(run);
  EXPECT_EQ(run_nanhunt({"check", segment}).status, 1);
}

TEST(Check, hostile_module_names_are_made_visible) {
  const std::string run = make_folder();
  write_sample_trace(run, {.module = "fc\x1b[2J\xff\xe2\x80\xae<script>"});
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 1);
  EXPECT_EQ(check.out.find('\x1b'), std::string::npos);
  EXPECT_THAT(check.out, HasSubstr("fc\\x1b[2J\\xff\\u{202e}<script>"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
