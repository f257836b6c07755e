// SPDX-License-Identifier: Apache-2.0
// The loss over the learning rate: in numbers, in words and as a picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nanhunt/reporter.h"
#include "reports/page/html_lr_chart.h"
#include "reports/views/lr_ramp_view.h"
#include "tests/reports/golden.h"
#include "tests/reports/sample_runs.h"

namespace nanhunt::reports {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_reports::expect_golden;
using testing_reports::make_ramp_analysis;

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LrRampView, says_where_a_finder_stops_and_what_it_suggests) {
  const LrRampView view = view_lr_ramp(*make_ramp_analysis().lr_ramp);
  EXPECT_EQ(view.points.size(), 40U);
  EXPECT_TRUE(view.logarithmic);
  ASSERT_TRUE(view.stop_lr && view.suggested_lr);
  EXPECT_THAT(view.answer, HasSubstr("the loss had diverged: a finder stops there"));
  EXPECT_THAT(view.answer, HasSubstr("falls fastest at"));
  EXPECT_EQ(view.lowest > 0, true);
  EXPECT_EQ(view.highest, 1e7) << "the largest finite loss";
}

TEST(LrRampView, of_a_ramp_that_did_not_diverge_or_is_too_short_says_that) {
  LrRamp ramp = *make_ramp_analysis().lr_ramp;
  ramp.points.resize(5);
  ramp.stops_at.reset();
  ramp.suggestion.reset();
  const LrRampView view = view_lr_ramp(ramp);
  EXPECT_FALSE(view.stop_lr || view.suggested_lr);
  EXPECT_EQ(view.answer, "The loss did not diverge up to there. There are too few steps to suggest a rate.");
}

TEST(LrRampView, is_bounded) {
  LrRamp ramp;
  for (std::uint32_t i = 0; i < 4096; ++i) ramp.points.push_back({i, std::pow(1.01, i), 1, 1});
  const LrRampView view = view_lr_ramp(ramp);
  EXPECT_EQ(view.points.size(), kLrPoints);
  EXPECT_EQ(view.points.back().step, 4095U);
  EXPECT_EQ(view.rows.size(), kLrRows);
}

TEST(LrRampChart, draws_finite_losses_as_points_and_the_others_as_marks) {
  HtmlWriter out;
  write_lr_ramp(out, view_lr_ramp(*make_ramp_analysis().lr_ramp));
  const std::string html = out.take();
  EXPECT_EQ(count_of(html, "<circle class=\"dot\""), 36U);
  EXPECT_EQ(count_of(html, "<polyline"), 1U);
  EXPECT_EQ(count_of(html, "<path class=\"mark bad\""), 3U) << "NaN";
  EXPECT_EQ(count_of(html, "<path class=\"mark bad fill\""), 1U) << "+Inf";
  EXPECT_THAT(html, HasSubstr("diverged at"));
  EXPECT_THAT(html, HasSubstr("<table>"));
  for (const char* no_number : {"=\"nan", "=\"inf", ",nan", ",inf"}) EXPECT_THAT(html, Not(HasSubstr(no_number)));
}

TEST(LrRampChart, of_losses_none_of_which_is_finite_or_all_of_which_are_equal_is_drawn_too) {
  for (const double loss : {std::nan(""), 2.0}) {
    LrRamp ramp;
    for (std::uint32_t i = 0; i < 30; ++i) ramp.points.push_back({i, std::pow(2, i), loss, loss});
    HtmlWriter out;
    write_lr_ramp(out, view_lr_ramp(ramp));
    const std::string html = out.take();
    EXPECT_THAT(html, HasSubstr("</svg>"));
    EXPECT_EQ(count_of(html, "no finite loss"), std::isnan(loss) ? 1U : 0U);
  }
}

TEST(LrRampReports, are_the_golden_ones) {
  expect_golden("ramp.txt", render_text(make_ramp_analysis()));
}

TEST(LrRampReports, the_page_has_the_picture_only_where_there_was_a_ramp) {
  EXPECT_THAT(render_html(make_ramp_analysis()), HasSubstr("Loss over the learning rate"));
  EXPECT_THAT(render_html(testing_reports::make_overflow_analysis()), Not(HasSubstr("Loss over the learning rate")));
}

}  // namespace
}  // namespace nanhunt::reports
