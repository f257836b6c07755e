// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/fleet/rank_program.h"
#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

using fleet_tests::RankPlan;
using fleet_tests::train_rank;
using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Four ranks on two hosts; `hit` overflows in step 2, and it comes to the others.
std::string run_of_four(int hit, const std::string& host = "n") {
  const std::string run = make_folder();
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    RankPlan plan;
    plan.group = {0, 1, 2, 3};
    if (hit >= 0) (rank == static_cast<std::uint32_t>(hit) ? plan.overflows : plan.arrives) = 2;
    train_rank(run, {rank, 4, {{"data", rank}}, host + (rank < 2 ? "0" : "1"), {}}, plan);
  }
  return run;
}

TEST(Fleet, names_the_rank_the_operation_the_cause_and_the_trace_to_read_next) {
  const std::string run = run_of_four(2);
  const Outcome fleet = run_nanhunt({"fleet", run});
  EXPECT_EQ(fleet.status, 1) << fleet.err;
  EXPECT_THAT(fleet.out, StartsWith("FAULT  Rank 2 alone: overflow at mul in block (train.py:10), step 2"));
  EXPECT_THAT(fleet.out, HasSubstr("4 of 4 read: it began on 1, it came to 3"));
  EXPECT_THAT(fleet.out, HasSubstr("Where   host n1, card Simulated card-2, data 2"));
  EXPECT_THAT(fleet.out, HasSubstr("What    overflows fp16"));
  EXPECT_THAT(fleet.out, HasSubstr("Cure"));
  EXPECT_THAT(fleet.out, HasSubstr("nanhunt report " + run + "/rank-00002/attempt-0"));
  EXPECT_THAT(fleet.err, HasSubstr("made 4 digests from their traces"));
}

TEST(Fleet, writes_json_page_and_the_reports_of_the_ranks_that_it_opened) {
  const std::string run = run_of_four(2);
  const Outcome fleet = run_nanhunt({"fleet", run});
  EXPECT_THAT(fleet.out, HasSubstr("Page    " + run + "/fleet.html"));
  EXPECT_THAT(fleet.err, HasSubstr("wrote " + run + "/fleet.json and " + run + "/fleet.html, and 2 ranks' reports"));
  EXPECT_EQ(json::parse(read_file(run + "/fleet.json"))["schema"], "nanhunt.fleet");
  const std::string page = read_file(run + "/fleet.html");
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("href=\"rank-00002/attempt-0/report.html\""));
  EXPECT_THAT(read_file(run + "/rank-00002/attempt-0/report.html"), StartsWith("<!doctype html>"));
  EXPECT_EQ(json::parse(read_file(run + "/rank-00002/attempt-0/report.json"))["schema"], "nanhunt.report");
  EXPECT_FALSE(std::filesystem::exists(run + "/rank-00000/attempt-0/report.html")) << "neither it nor its neighbour was opened";
  const Outcome again = run_nanhunt({"fleet", run});
  EXPECT_EQ(again.out, fleet.out);
  EXPECT_EQ(read_file(run + "/fleet.html"), page) << "what it wrote is no part of the run";
}

TEST(Fleet, links_nowhere_where_no_trace_was_opened) {
  const std::string run = run_of_four(2);
  ASSERT_EQ(run_nanhunt({"fleet", run, "--text"}).status, 1);
  EXPECT_EQ(run_nanhunt({"fleet", run, "--digests-only"}).status, 1);
  const std::string page = read_file(run + "/fleet.html");
  EXPECT_THAT(page, Not(HasSubstr("/report.html\">")));
  EXPECT_THAT(page, HasSubstr("nanhunt report " + run + "/rank-00002/attempt-0"));
  EXPECT_FALSE(std::filesystem::exists(run + "/rank-00002/attempt-0/report.html"));
}

TEST(Fleet, one_format_goes_to_stdout_or_a_file_and_writes_nothing_else) {
  const std::string run = run_of_four(2), out = make_folder();
  EXPECT_THAT(run_nanhunt({"fleet", run, "--text"}).out, StartsWith("FAULT  "));
  EXPECT_THAT(run_nanhunt({"fleet", run, "--html"}).out, StartsWith("<!doctype html>"));
  EXPECT_EQ(json::parse(run_nanhunt({"fleet", run, "--json"}).out)["status"], "fault");
  for (const char* name : {"a.txt", "a.html", "a.json"}) {
    const Outcome file = run_nanhunt({"fleet", run, "-o", out + "/" + name});
    EXPECT_EQ(file.status, 1) << file.err;
    EXPECT_EQ(file.out, "");
    EXPECT_THAT(file.err, HasSubstr("wrote " + out));
  }
  EXPECT_EQ(read_file(out + "/a.html"), run_nanhunt({"fleet", run, "--html"}).out);
  for (const char* name : {"/fleet.json", "/fleet.html", "/rank-00002/attempt-0/report.html"}) EXPECT_FALSE(std::filesystem::exists(run + name));
  EXPECT_EQ(run_nanhunt({"fleet", run, "-o", out + "/a.md"}).status, 2);
  EXPECT_EQ(run_nanhunt({"fleet", run, "--json", "--html"}).status, 2);
  EXPECT_EQ(run_nanhunt({"fleet", run, "--json", "-o", out + "/no/such/a.json"}).status, 6);
}

TEST(Fleet, replaces_links_and_never_follows_them) {
  const std::string run = run_of_four(2), other = make_folder() + "/mine";
  write_file(other, "mine");
  for (const char* name : {"/fleet.json", "/fleet.html"}) std::filesystem::create_symlink(other, run + name);
  EXPECT_EQ(run_nanhunt({"fleet", run}).status, 1);
  EXPECT_EQ(read_file(other), "mine");
  EXPECT_FALSE(std::filesystem::is_symlink(run + "/fleet.html"));
  const std::string elsewhere = make_folder() + "/rank", linked = run_of_four(2);
  std::filesystem::rename(linked + "/rank-00002", elsewhere);
  std::filesystem::create_directory_symlink(elsewhere, linked + "/rank-00002");
  EXPECT_EQ(run_nanhunt({"fleet", linked}).status, 1);
  EXPECT_FALSE(std::filesystem::exists(elsewhere + "/attempt-0/report.html"));
  EXPECT_THAT(read_file(linked + "/fleet.html"), HasSubstr("nanhunt report " + linked + "/rank-00002/attempt-0"));
}

TEST(Fleet, that_cannot_write_its_page_says_so_and_prints_the_verdict_all_the_same) {
  const std::string run = run_of_four(2);
  std::filesystem::create_directories(run + "/fleet.html/in-the-way");
  const Outcome fleet = run_nanhunt({"fleet", run});
  EXPECT_EQ(fleet.status, 1);
  EXPECT_THAT(fleet.out, StartsWith("FAULT  "));
  EXPECT_THAT(fleet.out, Not(HasSubstr("Page  ")));
  EXPECT_THAT(fleet.err, HasSubstr("fleet.html"));
  EXPECT_THAT(fleet.err, Not(HasSubstr("wrote ")));
}

TEST(Fleet, of_healthy_ranks_is_status_0_and_of_missing_ones_5) {
  const std::string run = run_of_four(-1);
  EXPECT_EQ(run_nanhunt({"fleet", run}).status, 0);
  std::filesystem::remove_all(run + "/rank-00003");
  const Outcome fleet = run_nanhunt({"fleet", run});
  EXPECT_EQ(fleet.status, 5);
  EXPECT_THAT(fleet.out, StartsWith("INCONCLUSIVE  No harm on 3 of 4 ranks"));
  EXPECT_THAT(fleet.out, HasSubstr("1 of 4 ranks left no digest: rank 3"));
}

TEST(Fleet, reads_digests_alone_and_says_what_is_damaged) {
  const std::string run = run_of_four(-1);
  ASSERT_EQ(run_nanhunt({"fleet", run}).status, 0);
  write_file(run + "/rank-00001/attempt-0/digest.json", "{\"schema\":");
  const Outcome fleet = run_nanhunt({"fleet", "--digests-only", run});
  EXPECT_EQ(fleet.status, 4);
  EXPECT_THAT(fleet.out, HasSubstr("1 digest cannot be read"));
  EXPECT_EQ(run_nanhunt({"fleet", run}).status, 0) << "its trace is there: it is made anew";
}

TEST(Fleet, json_holds_the_same_and_lists_that_are_bounded) {
  const json answer = json::parse(run_nanhunt({"fleet", run_of_four(1), "--json"}).out);
  EXPECT_EQ(answer["schema"], "nanhunt.fleet");
  EXPECT_EQ(answer["status"], "fault");
  EXPECT_EQ(answer["first"]["rank"], 1);
  EXPECT_EQ(answer["first"]["class"], "overflow");
  EXPECT_EQ(answer["ranks"], (json{{"count", 1}, {"ranks", {1}}}));
  EXPECT_EQ(answer["shape"]["kind"], "one");
  EXPECT_EQ(answer["came_by"]["through"], "allreduce");
  EXPECT_EQ(answer["reached"]["count"], 3);
  EXPECT_EQ(answer["clean_through"], 1);
  EXPECT_EQ(answer["parting"], nullptr);
}

TEST(Fleet, names_of_a_program_cannot_steer_the_terminal) {
  const Outcome fleet = run_nanhunt({"fleet", run_of_four(0, "\x1b[31mhost\n")});
  EXPECT_THAT(fleet.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(fleet.out, HasSubstr("host"));
  EXPECT_THAT(run_nanhunt({"fleet", run_of_four(0, "<script>x</script>\x1b"), "--html"}).out, Not(AnyOf(HasSubstr("<script>x"), HasSubstr("\x1b"))));
}

TEST(Fleet, of_what_is_no_run_says_what_to_give) {
  EXPECT_EQ(run_nanhunt({"fleet", make_folder()}).status, 3);
  const Outcome none = run_nanhunt({"fleet", "/no/such/run"});
  EXPECT_EQ(none.status, 3);
  EXPECT_THAT(none.err, HasSubstr("Give a run folder"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
