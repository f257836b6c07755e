// SPDX-License-Identifier: Apache-2.0
// `nanhunt advise` and `train --recipe`: from a run that failed to one that does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt {
namespace {

using namespace testing_tools;
using nlohmann::json;
using testing::HasSubstr;

std::string trained(const std::string& scenario, const std::vector<std::string>& more = {}) {
  const std::string run = make_folder() + "/run";
  std::vector<std::string> arguments = {"train", scenario, "--out", run};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = run_nanhunt(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return run;
}

std::string recipe_of(const std::string& changes) {
  const std::string path = make_folder() + "/recipe.json";
  write_file(path, R"({"schema": "nanhunt.recipe", "schema_version": 1, "changes": )" + changes + "}");
  return path;
}

TEST(Advise, gives_a_recipe_with_which_training_is_clean) {
  // given a run that failed, and the fixes tried on it
  const std::string run = trained("adam-eps"), recipe = make_folder() + "/recipe.json";
  // when
  const Outcome advice = run_nanhunt({"advise", run, "--recipe", recipe});
  // then the one change that was seen to work
  ASSERT_EQ(advice.status, 0) << advice.err;
  EXPECT_THAT(advice.out, HasSubstr("fp32-masters: seen to work on this run"));
  EXPECT_THAT(advice.out, HasSubstr("eps-1e-4: no cure on this run"));
  const json written = json::parse(read_file(recipe));
  EXPECT_EQ(written["schema"], "nanhunt.recipe");
  EXPECT_EQ(written["scenario"], "adam-eps");
  ASSERT_EQ(written["changes"].size(), 1u);
  EXPECT_EQ(written["changes"][0]["id"], "fp32-masters");
  EXPECT_EQ(written["changes"][0]["verified"], true);
  // and training with it is clean
  const std::string cured = trained("adam-eps", {"--recipe", recipe});
  const Outcome check = run_nanhunt({"check", cured});
  EXPECT_EQ(check.status, 0) << check.out;
}

TEST(Advise, names_the_line_of_code_where_it_is_known) {
  const std::string run = make_folder(), evil = make_folder();
  write_sample_trace(run);
  write_sample_trace(evil, {.site = "\x1b[31mloss.py:1"});
  const std::string told = run_nanhunt({"advise", run}).out;
  EXPECT_THAT(told.substr(0, told.find('\n')), HasSubstr("(loss.py:12)"));
  EXPECT_THAT(told, HasSubstr("for F1 (loss.py:12)"));
  EXPECT_EQ(json::parse(run_nanhunt({"advise", run, "--json"}).out)["call_site"], "loss.py:12");
  EXPECT_THAT(run_nanhunt({"advise", evil}).out, testing::Not(HasSubstr("\x1b")));
}

TEST(Advise, says_the_same_as_json) {
  const std::string run = trained("adam-eps");
  const Outcome outcome = run_nanhunt({"advise", run, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json advice = json::parse(outcome.out);
  EXPECT_EQ(advice["schema"], "nanhunt.advice");
  EXPECT_EQ(advice["status"], "fault");
  EXPECT_EQ(advice["changes"][0]["id"], "fp32-masters");
  EXPECT_TRUE(advice["unanswered"].empty());
  EXPECT_EQ(run_nanhunt({"advise", run, "--json", "--recipe", "-"}).status, 2);
}

TEST(Advise, asks_for_nothing_on_a_sound_run) {
  const Outcome outcome = run_nanhunt({"advise", trained("adam-eps-fixed")});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("Nothing has to be changed."));
}

TEST(Advise, writes_names_of_a_hostile_trace_harmlessly) {
  const std::string run = make_folder() + "/run";
  TraceOptions options;
  options.module = "\x1b[2J\xff\n\"";
  write_sample_trace(run, options);
  for (const char* flag : {"--json", "--recipe=-"}) {
    const Outcome outcome = run_nanhunt({"advise", run, flag});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_FALSE(json::parse(outcome.out).empty());
    for (const char c : outcome.out) ASSERT_TRUE((c >= ' ' && c <= '~') || c == '\n');
  }
}

TEST(Recipe, that_cannot_be_followed_is_refused_before_training) {
  const auto expect = [](const std::string& recipe, const char* words) {
    const Outcome outcome = run_nanhunt({"train", "adam-eps", "--out", make_folder() + "/run", "--recipe", recipe});
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr(words));
  };
  expect(make_folder() + "/none.json", "there is no readable recipe");
  expect(recipe_of(R"([{"id": "lower-lr"}])"), "It knows fp32-masters, eps-1e-4, fused-optimizer");
  expect(recipe_of(R"([{"id": "fp32-masters"}, {"id": "eps-1e-4"}])"), "one way at a time");
  expect(recipe_of(R"([{"name": "fp32-masters"}])"), "a change has no id");
  expect(recipe_of("7"), "lists no changes");
  for (const std::string& text :
       {std::string("not json"), std::string(), std::string(200000, '['), std::string(2 << 20, ' '),
        std::string(R"({"schema": "nanhunt.recipe", "schema_version": 2, "changes": []})"),
        std::string(R"({"schema": [], "changes": []})")}) {
    const std::string path = make_folder() + "/recipe.json";
    write_file(path, text);
    expect(path, "is no recipe that can be used");
  }
}

}  // namespace
}  // namespace nanhunt
