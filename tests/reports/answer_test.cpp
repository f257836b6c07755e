// SPDX-License-Identifier: Apache-2.0
// The answer before all else: ten lines of text, the card of a notebook, the first screen of the page.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "nanhunt/reporter.h"
#include "tests/reports/golden.h"
#include "tests/reports/html_scan.h"
#include "tests/reports/sample_analysis.h"
#include "tests/reports/sample_runs.h"

namespace nanhunt {
namespace {

using namespace testing_reports;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::ptrdiff_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Answer, of_a_fault_reads_as_in_the_golden_text) {
  expect_golden("answer.txt", render_answer(make_fault_analysis(), {.run = "my run"}));
}

TEST(Answer, has_headline_code_cause_cure_and_the_next_command) {
  const std::string text = render_answer(make_fault_analysis(), {.run = "my run"});
  EXPECT_THAT(text, StartsWith("FAULT  In step 0"));
  EXPECT_THAT(text, HasSubstr("  adam.py:88 in Adam.step\n"));
  EXPECT_THAT(text, HasSubstr("  > 88  p.addcdiv_(m, v.sqrt() + eps)\n"));
  EXPECT_THAT(text, ContainsRegex("\n  Cause +"));
  EXPECT_THAT(text, ContainsRegex("\n  Cure +Keep fp32 master weights and optimizer state. .seen to work on this run.\n"));
  EXPECT_THAT(text, ContainsRegex("\n  Rest +nanhunt report 'my run' --full +.also found: 1 warning.\n$"));
}

TEST(Answer, keeps_to_ten_lines_whatever_was_found) {
  Analysis wordy = make_fault_analysis();
  wordy.verdict.headline = wordy.findings[0].explanation = wordy.findings[0].advice[0].text = std::string(900, 'x');
  for (std::string* text : {&wordy.verdict.headline, &wordy.findings[0].explanation, &wordy.findings[0].advice[0].text}) {
    for (std::size_t i = 7; i < text->size(); i += 8) (*text)[i] = ' ';
  }
  for (const Analysis& analysis :
       {make_fault_analysis(), make_overflow_analysis(), make_warning_analysis(), make_calibrating_analysis(),
        make_clean_analysis(), make_hostile_analysis(), make_ramp_analysis(), wordy, Analysis{}}) {
    for (const int width : {80, 100, 200}) {
      const std::string text = render_answer(analysis, {.width = width});
      EXPECT_LE(lines_of(text), 10) << text;
      EXPECT_THAT(text, HasSubstr("nanhunt report RUN --full"));
    }
  }
}

TEST(Answer, gives_a_cause_or_a_harm_of_more_lines_room_that_code_would_take) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].element.reset();
  analysis.findings[0].explanation =
      "The sum of all of the squares is larger than what the format can hold, and so it became infinite, "
      "which the reciprocal root then turned into nothing at all, and the layer is dead from here.";
  const std::string text = render_answer(analysis);
  EXPECT_THAT(text, HasSubstr("the layer is dead\n          from here.\n"));
  EXPECT_LE(lines_of(text), 10) << text;
}

TEST(Answer, of_a_clean_run_says_what_was_seen_and_names_no_cure) {
  const std::string text = render_answer(make_clean_analysis());
  EXPECT_THAT(text, StartsWith("CLEAN  "));
  EXPECT_THAT(text, ContainsRegex("\n  Seen +40 steps, 5,210 operations"));
  EXPECT_THAT(text, Not(HasSubstr("Cure")));
}

TEST(Answer, that_is_bad_news_of_the_trace_is_told_in_it) {
  Analysis analysis = make_fault_analysis();
  analysis.coverage.clean_end = false;
  analysis.coverage.chunks_lost = 2;
  EXPECT_THAT(render_answer(analysis), ContainsRegex("\n  Note +2 chunks of the trace could not be read. And 1 more."));
}

TEST(Card, has_headline_cure_code_and_the_curve_with_the_step_of_the_origin) {
  const std::string card = render_card(make_overflow_analysis(), {.run = "run"});
  EXPECT_THAT(card, StartsWith("<div class=\"nanhunt-card fault\">"));
  for (const char* part : {"class=\"head\"", "class=\"cure\"", "class=\"loss\"", "began in step 24", "nanhunt report run --open"})
    EXPECT_THAT(card, HasSubstr(part));
  EXPECT_THAT(render_card(make_fault_analysis()), HasSubstr("p.addcdiv_(m, v.sqrt() + eps)"));
}

TEST(Card, holds_no_script_and_nothing_that_a_browser_would_fetch_whatever_the_names) {
  for (const Analysis& analysis : {make_hostile_analysis(), make_fault_analysis(), make_clean_analysis(), Analysis{}}) {
    const HtmlScan scan = scan_html(render_card(analysis));
    EXPECT_EQ(scan.error, "");
    EXPECT_TRUE(scan.scripts.empty());
    for (const HtmlTag& tag : scan.tags) {
      for (const char* foreign : {"script", "iframe", "img", "link", "object", "a"}) EXPECT_NE(tag.name, foreign);
      for (const auto& [name, value] : tag.attributes) EXPECT_NE(name.substr(0, 2), "on") << name << value;
    }
    EXPECT_EQ(scan.style.find("url("), std::string::npos);
  }
}

TEST(FirstScreen, has_cure_code_and_curve_before_the_answers) {
  const std::string page = render_html(make_fault_analysis());
  const std::size_t answers = page.find("<dl class=\"answers\">");
  for (const char* part : {"class=\"cure\"", "class=\"where\"", "id=\"curve\"", "class=\"origin\""}) {
    EXPECT_LT(page.find(part), answers) << part;
  }
}

TEST(Page, guard_constants_are_told_only_where_they_do_not_guard) {
  Analysis analysis = make_fault_analysis();
  EXPECT_THAT(render_html(analysis), HasSubstr("Guard constants that do not guard"));
  for (EpsAuditRow& row : analysis.eps_audit) row.verdict = "ok";
  EXPECT_THAT(render_html(analysis), Not(HasSubstr("Guard constants")));
}

TEST(Page, layers_stand_in_the_order_in_which_they_went_bad_forward_and_backward_apart) {
  Analysis analysis = make_overflow_analysis();
  for (LayerSummary& layer : analysis.layers) layer.bad_ops = 0;
  LayerSummary& third = analysis.layers[2];
  LayerSummary& last = analysis.layers.back();
  third.bad_ops = last.bad_ops = 1;
  last.bad_forward = {24, 900};
  third.bad_gradient = {24, 950};
  const std::string page = render_html(analysis);
  const std::string table = page.substr(page.find("id=\"layer-table\""));
  const auto at = [&](const std::string& module) { return table.find("<code>" + module + "</code>"); };
  EXPECT_LT(at(last.module), at(third.module));
  EXPECT_LT(at(third.module), at(analysis.layers[0].module));
  EXPECT_LT(at(analysis.layers[0].module), at(analysis.layers[1].module)) << "the others as they appeared";
  EXPECT_LT(table.find("step 24, 1st"), table.find("step 24, 2nd"));
  EXPECT_EQ(table.find("3rd"), std::string::npos);
}

TEST(Page, only_words_that_it_uses_are_explained) {
  const std::string page = render_html(make_fault_analysis());
  const std::string words = page.substr(page.find("id=\"words\""));
  EXPECT_THAT(words, HasSubstr("<dt>began here</dt>"));
  EXPECT_THAT(words, Not(HasSubstr("<dt>skipped step</dt>")));
  EXPECT_THAT(render_html(make_clean_analysis()), Not(HasSubstr("<dt>began here</dt>")));
}

}  // namespace
}  // namespace nanhunt
