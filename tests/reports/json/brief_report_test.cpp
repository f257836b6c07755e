// SPDX-License-Identifier: Apache-2.0
// The brief report: what an agent needs in at most 16 KiB, whatever a run is called and holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "nanhunt/reporter.h"
#include "tests/reports/sample_analysis.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kMostBytes = 16 * 1024;

json brief_of(const Analysis& analysis, const std::string& run = "RUN") {
  TextOptions options;
  options.run = run;
  const std::string text = render_brief(analysis, options);
  EXPECT_LE(text.size(), kMostBytes);
  return json::parse(text);
}

// Each name and sentence of the finding is as long as a trace allows.
Analysis make_flood() {
  Analysis analysis = make_fault_analysis();
  const std::string flood(4000, '\x07');  // becomes six bytes each where it is escaped
  for (Finding& f : analysis.findings) {
    f.place.module = flood;
    f.title = f.explanation = f.cause = flood;
    f.evidence.assign(300, flood);
    f.sinks.assign(300, flood);
    SourceFrame frame;
    frame.file = "/train.py";
    frame.function = flood;
    frame.line = frame.first_line = 3;
    frame.code.assign(9, flood);
    f.frames.assign(16, frame);
    if (!f.inputs.empty()) f.inputs.assign(200, f.inputs.front());
    for (Advice& advice : f.advice) advice.text = flood;
  }
  analysis.verdict.headline = flood;
  analysis.coverage.unwatched.assign(1000, flood);
  for (int i = 0; i < 200; ++i) analysis.findings.push_back(analysis.findings.front());
  return analysis;
}

TEST(BriefReport, a_fault_says_where_it_began_what_to_change_and_which_command_comes_next) {
  const Analysis analysis = make_fault_analysis();
  const json brief = brief_of(analysis, "my runs/a b");
  EXPECT_EQ(brief["verdict"]["status"], "fault");
  EXPECT_EQ(brief["origin"]["op"], *analysis.findings.front().place.op);
  EXPECT_EQ(brief["origin"]["step"], analysis.findings.front().place.step);
  EXPECT_FALSE(brief["cure"]["advice"].empty());
  ASSERT_FALSE(brief["next"].empty());
  for (const json& next : brief["next"]) EXPECT_THAT(next["command"].get<std::string>(), HasSubstr("'my runs/a b'"));
}

TEST(BriefReport, counts_line_numbers_and_steps_are_numbers) {
  const Analysis analysis = make_fault_analysis();
  const json brief = brief_of(analysis);
  const Finding& origin = analysis.findings.front();
  const json& tensors = brief["evidence"]["tensors"]["shown"];
  ASSERT_EQ(tensors.size(), origin.inputs.size() + 1);
  const TensorStats& result = (origin.output ? origin.output : origin.tensor)->stats;
  EXPECT_EQ(tensors.back()["counts"]["elements"], result.numel);
  EXPECT_EQ(tensors.back()["counts"]["nan"], result.nan);
  EXPECT_EQ(tensors.front()["counts"]["zeros"], origin.inputs.front().stats.zero);
  EXPECT_EQ(tensors.front()["counts"]["max"], origin.inputs.front().stats.max);
  ASSERT_FALSE(brief["code"]["lines"].empty());
  for (const json& line : brief["code"]["lines"]) {
    EXPECT_TRUE(line["number"].is_number_unsigned());
    if (line["here"]) {
      EXPECT_EQ(line["number"], origin.frames.front().line);
    }
  }
  ASSERT_FALSE(brief["others"]["first"].empty());
  EXPECT_EQ(brief["others"]["first"][0]["step"], analysis.findings[1].place.step);
}

TEST(BriefReport, a_clean_run_has_no_origin_and_says_what_was_not_watched) {
  const json brief = brief_of(make_clean_analysis());
  EXPECT_EQ(brief["verdict"]["status"], "clean");
  for (const char* none : {"origin", "evidence", "code", "cure"}) EXPECT_TRUE(brief[none].is_null()) << none;
  EXPECT_EQ(brief["next"].size(), 1U);
}

TEST(BriefReport, names_and_code_of_megabytes_leave_it_small_and_the_origin_in_it) {
  const json brief = brief_of(make_flood());
  EXPECT_EQ(brief["verdict"]["status"], "fault");
  EXPECT_EQ(brief["origin"]["class"], brief_of(make_fault_analysis())["origin"]["class"]);
  EXPECT_GT(brief["evidence"]["facts"]["omitted"].get<int>(), 200);
}

TEST(BriefReport, a_command_that_would_be_cut_is_left_out) {
  const json brief = brief_of(make_fault_analysis(), std::string(5000, 'r'));
  EXPECT_TRUE(brief["next"].empty());
}

TEST(BriefReport, one_analysis_gives_the_same_bytes_twice_and_says_that_names_are_data) {
  EXPECT_EQ(render_brief(make_hostile_analysis()), render_brief(make_hostile_analysis()));
  EXPECT_THAT(brief_of(make_hostile_analysis())["caution"].get<std::string>(), StartsWith("Names, messages and code"));
}

}  // namespace
}  // namespace nanhunt
