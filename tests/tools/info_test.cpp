// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Info, tells_what_ran_and_what_was_recorded) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const Outcome info = run_nanhunt({"info", run});
  EXPECT_EQ(info.status, 0) << info.err;
  for (const char* expected : {"rank 0, attempt 0", "train.py --lr 0.1", "8 finished, 0 to 7",
                               "16 of 2 kinds: mean 8, sqrt 8", "24, 2 not finite", "intact, clean end"}) {
    EXPECT_THAT(info.out, HasSubstr(expected));
  }
}

TEST(Info, json_counts_the_same) {
  const std::string run = make_folder();
  write_sample_trace(run);
  const json info = json::parse(run_nanhunt({"info", run, "--json"}).out);
  EXPECT_EQ(info["schema"], "nanhunt.info");
  const json& attempt = info["attempts"][0];
  EXPECT_EQ(attempt["contents"]["steps"], 8);
  EXPECT_EQ(attempt["contents"]["ops"], 16);
  EXPECT_EQ(attempt["contents"]["values"], 24);
  EXPECT_EQ(attempt["contents"]["nonfinite_values"], 2);
  EXPECT_EQ(attempt["contents"]["op_counts"][0], json({{"op", "mean"}, {"count", 8}}));
  EXPECT_EQ(attempt["run"]["command"], json({"train.py", "--lr", "0.1"}));
  EXPECT_EQ(attempt["run"]["volatile"]["pid"], 7);
  EXPECT_EQ(attempt["health"]["clean_end"], true);
}

TEST(Info, counts_what_watching_left) {
  const std::string run = make_folder();
  write_sample_trace(run, {.watched = true});
  const json contents = json::parse(run_nanhunt({"info", run, "--json"}).out)["attempts"][0]["contents"];
  for (const char* key : {"health_rows", "norm_rows", "unheard_steps", "changed_unseen", "probes", "captures",
                          "notes", "collectives", "kernel_rows", "frames", "setup_rows"})
    EXPECT_EQ(contents[key], 1) << key;
  EXPECT_THAT(run_nanhunt({"info", run}).out, HasSubstr("1 value that nothing watched wrote"));
}

TEST(Info, lists_every_attempt_of_every_rank) {
  const std::string run = make_folder();
  write_sample_trace(run);
  write_sample_trace(run, {.bad = false});
  write_sample_trace(run, {.rank = 3});
  const json attempts = json::parse(run_nanhunt({"info", run, "--json"}).out)["attempts"];
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[1]["run"]["attempt"], 1);
  EXPECT_EQ(attempts[2]["run"]["rank"], 3);
}

TEST(Info, a_missing_end_is_told) {
  const std::string run = make_folder();
  write_sample_trace(run, {.clean_end = false});
  EXPECT_THAT(run_nanhunt({"info", run}).out, HasSubstr("no clean end"));
}

TEST(Info, one_unreadable_attempt_does_not_hide_the_others) {
  const std::string run = make_folder();
  write_file(write_sample_trace(run), "garbage");
  write_sample_trace(run);
  const Outcome info = run_nanhunt({"info", run});
  EXPECT_EQ(info.status, 0);
  EXPECT_THAT(info.out, HasSubstr("unreadable"));
  EXPECT_THAT(info.out, HasSubstr("intact"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
