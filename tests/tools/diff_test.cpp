// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/trace_builder.h"
#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(DiffVerb, says_that_a_run_is_like_itself) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome same = run_nanhunt({"diff", run, run});
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out, StartsWith("No difference in health over 8 steps and "));
  EXPECT_EQ(same.err, "");
}

TEST(DiffVerb, names_the_op_at_which_a_fault_parts_from_its_twin) {
  // given a run in which the loss of step 2 takes a root of a negative number, and one in which it does not
  const std::string bad = make_folder(), good = make_folder();
  write_sample_trace(bad);
  write_sample_trace(good, {.bad = false});
  const Outcome text = run_nanhunt({"diff", bad, good});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, StartsWith("Health parts at step 2, "));
  // then the same as JSON, with every documented key
  const Outcome run = run_nanhunt({"diff", bad, good, "--json"});
  EXPECT_EQ(run.status, 0) << run.err;
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer["schema"], "nanhunt.diff");
  EXPECT_EQ(answer["schema_version"], 1);
  EXPECT_EQ(answer["same"], false);
  EXPECT_EQ(answer["difference"]["step"], 2);
  EXPECT_EQ(answer["difference"], answer["first"][answer["difference"]["kind"].get<std::string>()]);
  for (const char* key : {"kind", "step", "micro_batch", "phase", "module", "op", "output", "seq_a", "seq_b", "what",
                          "number_a", "number_b", "tolerance", "value_a", "value_b"}) {
    EXPECT_TRUE(answer["difference"].contains(key)) << key;
  }
  for (const char* key :
       {"counts", "steps_compared", "ops_compared", "steps_only_a", "steps_only_b", "loosely_aligned"}) {
    EXPECT_TRUE(answer.contains(key)) << key;
  }
  EXPECT_EQ(answer["a"]["damaged"], false);
  EXPECT_EQ(answer["b"]["steps"], 8);
}

// Two good steps without operations.
std::string run_without_ops(const std::string& level, const std::string& why_no_tap) {
  testing_support::TraceBuilder t;
  if (!why_no_tap.empty()) t.note("operations: the tap is missing, because " + why_no_tap, 1);
  for (int i = 0; i < 2; ++i) {
    t.health();
    t.end_step();
  }
  RunInfo info;
  info.level = level;
  const std::string run = make_folder();
  auto writer = TraceWriter::create(run, info);
  EXPECT_TRUE(writer) << writer.status().message();
  for (const RecordBatch& batch : t.batches()) EXPECT_TRUE((*writer)->write(batch));
  EXPECT_TRUE((*writer)->close());
  return run;
}

TEST(DiffVerb, of_runs_without_operations_says_what_was_compared_and_what_not) {
  const std::string run = run_without_ops("steps", "");
  const Outcome same = run_nanhunt({"diff", run, run});
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out, StartsWith("No difference in health over 2 steps and 0 ops\n"));
  EXPECT_THAT(same.out, HasSubstr("operations were not, for no step has"));
}

TEST(DiffVerb, proposes_level_ops_only_where_it_records_operations) {
  const std::string run = run_without_ops("steps", "");
  EXPECT_THAT(run_nanhunt({"diff", run, run}).out, HasSubstr("Level ops records them."));
  for (const char* level : {"steps", "ops"}) {
    const std::string missing = run_without_ops(level, "there is no C++ compiler");
    const std::string said = run_nanhunt({"diff", run, missing}).out;
    EXPECT_THAT(said, HasSubstr("Those of B were not watched: the tap is missing, because there is no C++ compiler.\n"));
    EXPECT_THAT(said, Not(HasSubstr("Level ops")));
  }
  const std::string all = run_without_ops("ops", "");
  EXPECT_THAT(run_nanhunt({"diff", all, all}).out, Not(HasSubstr("Level ops")));
}

TEST(DiffVerb, counts_operations_as_info_does) {
  const std::string run = make_folder() + "/run";
  ASSERT_EQ(run_nanhunt({"train", "adam-eps", "--out", run, "--no-verify"}).status, 0);
  const json info = json::parse(run_nanhunt({"info", run, "--json"}).out);
  const json same = json::parse(run_nanhunt({"diff", run, run, "--json"}).out);
  EXPECT_EQ(same["ops_compared"], info["attempts"][0]["contents"]["ops"]);
  EXPECT_EQ(same["a"]["ops"], info["attempts"][0]["contents"]["ops"]);
}

TEST(DiffVerb, compares_what_is_left_of_a_damaged_run_and_says_so) {
  const std::string whole = make_folder(), cut = make_folder();
  write_sample_trace(whole, {.steps = 400, .bad = false});
  const std::string file = write_sample_trace(cut, {.steps = 400, .bad = false});
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) / 2));
    bytes.write("damage damage damage damage", 27);
  }
  const Outcome run = run_nanhunt({"diff", whole, cut, "--json"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.err, HasSubstr("is damaged; what could be read was compared"));
  const json answer = json::parse(run.out);
  EXPECT_EQ(answer["a"]["damaged"], false);
  EXPECT_EQ(answer["b"]["damaged"], true);
  EXPECT_EQ(answer["difference"], nullptr);
}

TEST(DiffVerb, refuses_what_is_no_run_and_wrong_usage) {
  const std::string run = make_folder(), empty = make_folder();
  write_sample_trace(run);
  EXPECT_EQ(run_nanhunt({"diff", run}).status, 2);
  EXPECT_EQ(run_nanhunt({"diff", run, run, "--tolerance", "-1"}).status, 2);
  EXPECT_EQ(run_nanhunt({"diff", run, run, "--attempt-b", "7"}).status, 2);
  EXPECT_EQ(run_nanhunt({"diff", run, run + "/no-such"}).status, 3);
  EXPECT_EQ(run_nanhunt({"diff", empty, run}).status, 3);
}

TEST(DiffVerb, says_when_two_runs_have_no_step_in_common) {
  const std::string run = make_folder(), empty = make_folder();
  write_sample_trace(run);
  write_empty_trace(empty);
  const Outcome outcome = run_nanhunt({"diff", run, empty});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("The runs have no step in common"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
