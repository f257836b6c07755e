// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

std::string make_damaged_run(std::string* segment) {
  const std::string run = make_folder();
  *segment = write_sample_trace(run, {.steps = 200});
  std::string bytes = read_file(*segment);
  for (std::size_t i = 0; i < 64; ++i) bytes[bytes.size() / 2 + i] ^= 0x55;
  write_file(*segment, bytes);
  return run;
}

TEST(Doctor, an_intact_trace_lost_nothing) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome doctor = run_nanhunt({"doctor", run});
  EXPECT_EQ(doctor.status, 0) << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr("rank 0, attempt 0: intact"));
  EXPECT_THAT(doctor.out, HasSubstr("lost: nothing"));
}

TEST(Doctor, says_exactly_what_was_lost) {
  std::string segment;
  const std::string run = make_damaged_run(&segment);
  const json doctor = json::parse(run_nanhunt({"doctor", run, "--json"}).out);
  const json& attempt = doctor["attempts"][0];
  EXPECT_EQ(attempt["condition"], "damaged");
  EXPECT_GE(attempt["health"]["chunks_lost"], 1);
  EXPECT_FALSE(attempt["health"]["problems"].empty());
}

TEST(Doctor, salvages_into_a_new_folder_and_leaves_the_original_alone) {
  std::string segment;
  const std::string run = make_damaged_run(&segment), out = make_folder() + "/salvaged";
  const std::string before = read_file(segment);

  const Outcome doctor = run_nanhunt({"doctor", run, "--salvage", out});

  EXPECT_EQ(doctor.status, 0) << doctor.err;
  EXPECT_THAT(doctor.err, HasSubstr("nanhunt report " + out));
  EXPECT_EQ(read_file(segment), before);
  const json copy = json::parse(run_nanhunt({"doctor", out, "--json"}).out);
  EXPECT_EQ(copy["attempts"][0]["condition"], "intact");
  EXPECT_EQ(run_nanhunt({"check", out}).status, 1);  // the fault is still in it
}

TEST(Doctor, every_trace_comes_with_the_next_step) {
  std::string segment;
  const std::string damaged = make_damaged_run(&segment), intact = make_folder();
  write_sample_trace(intact);
  EXPECT_THAT(run_nanhunt({"doctor", damaged}).err, HasSubstr("nanhunt doctor " + damaged + " --salvage"));
  EXPECT_THAT(run_nanhunt({"info", damaged}).err, HasSubstr("nanhunt doctor " + damaged));
  EXPECT_THAT(run_nanhunt({"doctor", intact}).err, HasSubstr("nanhunt report " + intact));
  EXPECT_THAT(run_nanhunt({"info", intact}).err, HasSubstr("nanhunt report " + intact));
}

TEST(Doctor, a_salvaged_copy_sends_nobody_back_to_the_doctor) {
  std::string segment;
  const std::string damaged = make_damaged_run(&segment), copy = make_folder() + "/salvaged";
  run_nanhunt({"doctor", damaged, "--salvage", copy});
  const Outcome first = run_nanhunt({"check", damaged}), second = run_nanhunt({"check", copy});
  EXPECT_THAT(first.err, HasSubstr("the trace is damaged: 2 chunks lost"));
  EXPECT_THAT(first.err, HasSubstr("Next: `nanhunt doctor " + damaged));
  EXPECT_THAT(second.err, HasSubstr("the salvaged copy of a damaged trace: 2 chunks lost"));
  EXPECT_THAT(second.err, HasSubstr("Next: for a whole verdict train again"));
  EXPECT_EQ(second.err.find("doctor"), std::string::npos) << second.err;
  EXPECT_THAT(run_nanhunt({"doctor", copy}).out, HasSubstr("a salvaged copy of a damaged trace: 2 chunks lost"));
}

TEST(Doctor, names_alone_are_nothing_to_judge_or_to_salvage) {
  const std::string run = make_folder();
  const std::string segment = write_sample_trace(run, {.steps = 200, .bad = false});
  const std::string bytes = read_file(segment);
  constexpr std::size_t kChunkHeader = 40;
  std::size_t at = 0;  // of the third chunk: strings and layouts come before it
  for (int chunk = 0; chunk < 3; ++chunk) at = bytes.find("NHc\1", at + 1);
  write_file(segment, bytes.substr(0, at + kChunkHeader + 1));

  const Outcome doctor = run_nanhunt({"doctor", run});
  EXPECT_THAT(doctor.out, HasSubstr("what could be read are names"));
  EXPECT_EQ(doctor.err.find("--salvage"), std::string::npos) << doctor.err;
  const Outcome check = run_nanhunt({"check", run});
  EXPECT_EQ(check.status, 4);
  EXPECT_THAT(check.out, HasSubstr("nothing that is left of it can be judged"));
  EXPECT_EQ(check.out.find("Nothing was recorded"), std::string::npos) << check.out;
}

TEST(Doctor, does_not_salvage_into_a_folder_that_holds_something) {
  std::string segment;
  const std::string run = make_damaged_run(&segment), out = make_folder();
  write_file(out + "/mine", "");
  const Outcome doctor = run_nanhunt({"doctor", run, "--salvage", out});
  EXPECT_EQ(doctor.status, 6);
  EXPECT_THAT(doctor.err, HasSubstr("new folder"));
  EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 1);
}

TEST(Doctor, a_copy_that_cannot_be_written_gives_status_6) {
  const std::string run = make_folder();
  write_sample_trace(run);
  EXPECT_EQ(run_nanhunt({"doctor", run, "--salvage", "/proc/nowhere/out"}).status, 6);
}

TEST(Doctor, nothing_readable_is_nothing_to_salvage) {
  const std::string run = make_folder(), out = make_folder() + "/salvaged";
  write_file(write_sample_trace(run), "garbage");
  const Outcome doctor = run_nanhunt({"doctor", run, "--salvage", out});
  EXPECT_EQ(doctor.status, 3);
  EXPECT_FALSE(fs::exists(out));
}

TEST(Doctor, a_run_that_was_killed_has_no_clean_end_and_no_damage) {
  const std::string run = make_folder();
  write_sample_trace(run, {.clean_end = false});
  const json doctor = json::parse(run_nanhunt({"doctor", run, "--json"}).out);
  EXPECT_EQ(doctor["attempts"][0]["condition"], "no clean end");
  EXPECT_EQ(doctor["attempts"][0]["health"]["chunks_lost"], 0);
}

}  // namespace
}  // namespace nanhunt::testing_tools
