// SPDX-License-Identifier: Apache-2.0
#include "reports/views/timeline_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanhunt::reports {
namespace {

Analysis make_timeline(const std::vector<double>& losses) {
  Analysis analysis;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    TimelineStep step;
    step.step = static_cast<std::uint32_t>(i);
    step.loss = losses[i];
    analysis.timeline.push_back(step);
  }
  return analysis;
}

TEST(TimelineView, no_steps_give_an_empty_view) { EXPECT_TRUE(make_timeline_view(Analysis{}).empty()); }

TEST(TimelineView, one_step_is_one_point) {
  const TimelineView view = make_timeline_view(make_timeline({2.5}));
  ASSERT_EQ(view.lines.size(), 1u);
  ASSERT_EQ(view.lines[0].size(), 1u);
  EXPECT_EQ(view.lines[0][0].loss, 2.5);
  EXPECT_FALSE(view.logarithmic);
}

TEST(TimelineView, losses_that_are_0_throughout_are_not_known) {
  const TimelineView view = make_timeline_view(make_timeline({0, 0, 0}));
  EXPECT_TRUE(view.lines.empty() && !view.has_losses);
  EXPECT_NE(chart_caption(view, false).find("No loss is known"), std::string::npos);
  EXPECT_TRUE(make_timeline_view(make_timeline({0, 0.5, 0})).has_losses);
  EXPECT_TRUE(make_timeline_view(make_timeline({0, 0, std::nan("")})).has_losses);
}

TEST(TimelineView, has_a_scale_only_where_one_was_seen) {
  Analysis analysis = make_timeline({1, 2});
  EXPECT_FALSE(make_timeline_view(analysis).has_scale);
  analysis.timeline[1].scale = 512;
  EXPECT_TRUE(make_timeline_view(analysis).has_scale);
}

TEST(TimelineView, the_line_breaks_where_a_loss_is_not_finite) {
  const double nan = std::nan("");
  const TimelineView view = make_timeline_view(make_timeline({1, 2, nan, 3, 4}));
  ASSERT_EQ(view.lines.size(), 2u);
  EXPECT_EQ(view.lines[1][0].step, 3u);
  ASSERT_EQ(view.marks.size(), 1u);
  EXPECT_EQ(view.marks[0].mark, StepMark::kNaN);
  EXPECT_EQ(view.marks[0].step, 2u);
}

TEST(TimelineView, its_caption_tells_the_span_of_the_chart_from_that_of_finite_losses) {
  const double nan = std::nan("");
  EXPECT_EQ(chart_caption(make_timeline_view(make_timeline({1, 3, 2, nan, nan}))),
            "The loss, from step 0 to step 4. 2 steps had a loss that was not finite; finite ones: step 0 to step 2, "
            "between 1 and 3. Steps with anything bad are listed in the table below.");
  EXPECT_EQ(
      chart_caption(make_timeline_view(make_timeline({1, 3}))),
      "The loss, from step 0 to step 1. All losses that were recorded are finite, between 1 and 3. Steps with anything "
      "bad are listed in the table below.");
  EXPECT_EQ(chart_caption(make_timeline_view(make_timeline({nan}))),
            "The loss, of step 0. No loss was finite. Steps with anything bad are listed in the table below.");
}

TEST(TimelineView, infinities_are_kept_apart_by_sign) {
  const double inf = std::numeric_limits<double>::infinity();
  const TimelineView view = make_timeline_view(make_timeline({inf, -inf}));
  ASSERT_EQ(view.marks.size(), 2u);
  EXPECT_EQ(view.marks[0].mark, StepMark::kPosInf);
  EXPECT_EQ(view.marks[1].mark, StepMark::kNegInf);
  EXPECT_FALSE(view.has_losses);
}

TEST(TimelineView, a_spike_among_a_million_steps_survives_thinning) {
  std::vector<double> losses(1'000'000, 1.0);
  losses[123'456] = 1000;
  losses[654'321] = -5;
  const TimelineView view = make_timeline_view(make_timeline(losses));
  std::size_t points = 0;
  bool spike = false, dip = false;
  for (const auto& line : view.lines) {
    points += line.size();
    for (const LossPoint& p : line) {
      spike = spike || (p.step == 123'456 && p.loss == 1000);
      dip = dip || (p.step == 654'321 && p.loss == -5);
    }
  }
  EXPECT_TRUE(spike);
  EXPECT_TRUE(dip);
  EXPECT_LE(points, 2 * kTimelineColumns);
}

TEST(TimelineView, rows_are_bounded_and_the_rest_is_counted) {
  const TimelineView view = make_timeline_view(make_timeline(std::vector<double>(1000, std::nan(""))));
  EXPECT_EQ(view.notable.size(), kTimelineRows);
  EXPECT_EQ(view.notable_omitted, 1000 - kTimelineRows);
}

TEST(TimelineView, wide_positive_losses_are_drawn_on_a_logarithmic_scale) {
  EXPECT_TRUE(make_timeline_view(make_timeline({0.001, 1})).logarithmic);
  EXPECT_FALSE(make_timeline_view(make_timeline({0, 1000})).logarithmic);
}

}  // namespace
}  // namespace nanhunt::reports
