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
using ::testing::Not;
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
  EXPECT_THAT(check.out, StartsWith("fault: invalid: sqrt in fc1: sqrt of a negative number (loss.py:12), phase loss, step 2\n"));
}

TEST(Check, a_line_of_code_cannot_steer_the_terminal_and_may_be_unknown) {
  const std::string evil = make_folder(), unknown = make_folder();
  write_sample_trace(evil, {.site = "\x1b[31mloss\n.py:1"});
  write_sample_trace(unknown, {.site = ""});
  const std::string told = run_nanhunt({"check", evil}).out;
  EXPECT_THAT(told, HasSubstr("loss"));
  EXPECT_THAT(told, Not(HasSubstr("\x1b")));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1);
  EXPECT_EQ(run_nanhunt({"check", unknown}).out, "fault: invalid: sqrt in fc1: sqrt of a negative number, phase loss, step 2\n");
  EXPECT_EQ(json::parse(run_nanhunt({"check", unknown, "--json"}).out)["finding"]["call_site"], nullptr);
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
  EXPECT_EQ(answer["finding"]["call_site"], "loss.py:12");
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

TEST(Check, a_trace_without_a_clean_end_is_said_to_have_none) {
  const std::string run = make_folder(), ended = make_folder();
  write_sample_trace(run, {.bad = false, .clean_end = false});
  write_sample_trace(ended, {.bad = false});
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 0) << check.err;
  EXPECT_THAT(check.out, StartsWith("clean: No harmful NaN or Inf in "));
  EXPECT_THAT(check.out, HasSubstr(" so far: the run has not ended"));
  EXPECT_THAT(run_nanhunt({"check", ended}).out, Not(HasSubstr("has not ended")));
}

// A copy of a trace from whose middle a chunk was lost; its header tells how many rows it held.
std::string salvage_damaged_trace(bool bad) {
  const std::string run = make_folder(), copy = make_folder() + "/copy";
  const std::string segment = write_sample_trace(run, {.steps = 200, .bad = bad});
  std::string bytes = read_file(segment);
  constexpr std::size_t kHeaderBytes = 40;
  bytes.at(bytes.find("NHc\1", bytes.size() / 2) + kHeaderBytes) ^= 0x55;
  write_file(segment, bytes);
  EXPECT_EQ(run_nanhunt({"doctor", run, "--salvage", copy}).status, 0);
  return copy;
}

TEST(Check, a_copy_of_a_damaged_trace_is_damaged_unless_there_is_a_fault) {
  const std::string clean = salvage_damaged_trace(false), faulty = salvage_damaged_trace(true);
  EXPECT_EQ(run_nanhunt({"check", clean}).status, 4);
  EXPECT_THAT(run_nanhunt({"check", clean}).out, StartsWith("clean (damaged trace): "));
  EXPECT_EQ(json::parse(run_nanhunt({"check", clean, "--json"}).out)["damaged"], true);
  EXPECT_EQ(run_nanhunt({"check", faulty}).status, 1);
  EXPECT_EQ(json::parse(run_nanhunt({"check", faulty, "--json"}).out)["damaged"], true);
}

TEST(Check, a_copy_of_a_whole_trace_is_whole) {
  const std::string run = make_folder(), copy = make_folder() + "/copy";
  write_sample_trace(run, {.bad = false});
  EXPECT_EQ(run_nanhunt({"doctor", run, "--salvage", copy}).status, 0);
  EXPECT_EQ(run_nanhunt({"check", copy}).status, 0);
}

TEST(Check, records_lost_in_damage_are_not_called_dropped_while_recording) {
  const std::string copy = salvage_damaged_trace(false);
  const std::string text = run_nanhunt({"report", copy, "--text"}).out + run_nanhunt({"info", copy}).out;
  EXPECT_THAT(text, HasSubstr("lost where the trace was damaged"));
  EXPECT_THAT(text, HasSubstr("lost in damage"));
  EXPECT_THAT(text, Not(HasSubstr("while recording")));
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
