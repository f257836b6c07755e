// SPDX-License-Identifier: Apache-2.0
// The loss over the steps, thinned to what a chart can show. Spikes survive (minimum and maximum of each
// column are kept) and steps with anything bad are marked apart, never as points of the line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

inline constexpr std::size_t kTimelineColumns = 480;
inline constexpr std::size_t kTimelineRows = 40;
inline constexpr double kLogarithmicFrom = 50;  // factor between the largest and the smallest loss

enum class StepMark { kNaN, kPosInf, kNegInf, kSkipped, kBadOps };

struct LossPoint {
  std::uint32_t step = 0;
  double loss = 0;  // finite
};
struct MarkedColumn {
  std::uint32_t step = 0;  // the first step of the column with this mark
  StepMark mark = StepMark::kNaN;
  std::uint64_t count = 0;
};
struct TimelineRow {
  std::string step, loss, scale, lr, what;
};

struct TimelineView {
  std::uint32_t first_step = 0, last_step = 0;
  double lowest = 0, highest = 0;  // of the finite losses
  std::uint32_t first_finite = 0, last_finite = 0;  // steps with a finite loss, when has_losses
  std::uint64_t not_finite = 0;                     // steps whose loss was not
  bool has_losses = false;
  bool has_scale = false;  // a loss scaler was seen, or a scale other than 1
  bool logarithmic = false;                   // the losses span more than a factor of 50 and are positive
  std::vector<std::vector<LossPoint>> lines;  // broken where a loss was not finite
  std::vector<MarkedColumn> marks;            // by step, then kind
  std::vector<TimelineRow> notable;           // steps that were skipped or not finite, and the last one
  std::uint64_t notable_omitted = 0;
  std::uint64_t steps = 0;    // as given
  std::uint64_t omitted = 0;  // left out by the analysis
  bool empty() const { return steps == 0; }
};

TimelineView make_timeline_view(const Analysis& analysis);
// What the still picture shows: the span of the chart, which steps had a finite loss, and how many had none.
// `has_table`: of the notable steps.
std::string chart_caption(const TimelineView& view, bool has_table = true);

}  // namespace nanhunt::reports
