// SPDX-License-Identifier: Apache-2.0
#include "reports/views/timeline_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "reports/views/numbers.h"
#include "src/core/text.h"

namespace nanhunt::reports {
namespace {

constexpr std::size_t kMarkKinds = 5;

struct Column {
  std::optional<LossPoint> low, high;
  bool broken = false;  // holds a loss that is not finite
  std::array<MarkedColumn, kMarkKinds> marks{};

  void mark(StepMark kind, std::uint32_t step) {
    MarkedColumn& m = marks[static_cast<std::size_t>(kind)];
    if (m.count == 0) m.step = step;
    m.mark = kind;
    ++m.count;
  }
};

std::optional<StepMark> loss_mark(double loss) {
  if (std::isnan(loss)) return StepMark::kNaN;
  if (std::isinf(loss)) return loss > 0 ? StepMark::kPosInf : StepMark::kNegInf;
  return std::nullopt;
}

std::string known(double value) { return std::isnan(value) ? "—" : format_short(value); }

TimelineRow make_row(const TimelineStep& step) {
  TimelineRow row{format_count(step.step), format_short(step.loss), known(step.scale), known(step.lr), ""};
  std::vector<std::string> what;
  if (step.skipped) what.push_back("skipped");
  if (!std::isfinite(step.loss)) what.push_back("loss not finite");
  if (step.bad_ops != 0) what.push_back(plural(step.bad_ops, "operation", "operations") + " with bad output");
  row.what = join(what, ", ");
  return row;
}

bool is_notable(const TimelineStep& step) { return step.skipped || step.bad_ops != 0 || !std::isfinite(step.loss); }

}  // namespace

TimelineView make_timeline_view(const Analysis& analysis) {
  TimelineView view;
  const auto& steps = analysis.timeline;
  view.omitted = analysis.timeline_omitted;
  view.steps = steps.size();
  if (steps.empty()) return view;

  view.first_step = view.last_step = steps.front().step;
  view.has_scale = analysis.scaler.has_value();
  for (const TimelineStep& step : steps) {
    view.has_scale = view.has_scale || (!std::isnan(step.scale) && step.scale != 1);
    view.first_step = std::min(view.first_step, step.step);
    view.last_step = std::max(view.last_step, step.step);
  }
  const double span = static_cast<double>(view.last_step) - view.first_step + 1;
  std::vector<Column> columns(kTimelineColumns);
  bool any_finite = false;
  for (const TimelineStep& step : steps) {
    const double at = (static_cast<double>(step.step) - view.first_step) / span * static_cast<double>(columns.size());
    Column& column = columns[std::min(columns.size() - 1, static_cast<std::size_t>(at))];
    if (const auto mark = loss_mark(step.loss)) {
      column.mark(*mark, step.step);
      column.broken = true;
      ++view.not_finite;
    } else {
      if (!any_finite) view.first_finite = step.step;
      any_finite = true;
      view.last_finite = step.step;
      const LossPoint point{step.step, step.loss};
      if (!column.low || point.loss < column.low->loss) column.low = point;
      if (!column.high || point.loss > column.high->loss) column.high = point;
    }
    if (step.skipped) column.mark(StepMark::kSkipped, step.step);
    if (step.bad_ops != 0) column.mark(StepMark::kBadOps, step.step);
    if (is_notable(step)) {
      if (view.notable.size() < kTimelineRows) {
        view.notable.push_back(make_row(step));
      } else {
        ++view.notable_omitted;
      }
    }
  }
  if (!is_notable(steps.back())) view.notable.push_back(make_row(steps.back()));

  bool open = false;
  for (const Column& column : columns) {
    if (column.low) {
      LossPoint first = *column.low, second = *column.high;
      if (first.step > second.step) std::swap(first, second);
      if (!open) view.lines.emplace_back();
      open = true;
      view.lines.back().push_back(first);
      if (second.step != first.step) view.lines.back().push_back(second);
      if (!view.has_losses) view.lowest = view.highest = first.loss;
      view.has_losses = true;
      view.lowest = std::min(view.lowest, column.low->loss);
      view.highest = std::max(view.highest, column.high->loss);
    }
    if (column.broken) open = false;
    for (const MarkedColumn& mark : column.marks) {
      if (mark.count != 0) view.marks.push_back(mark);
    }
  }
  // 0 throughout stands for losses that could not be read.
  if (view.has_losses && view.lowest == 0 && view.highest == 0 && view.not_finite == 0) {
    view.has_losses = false;
    view.lines.clear();
  }
  view.logarithmic = view.has_losses && view.lowest > 0 && view.highest / view.lowest > kLogarithmicFrom;
  return view;
}

std::string chart_caption(const TimelineView& view, bool has_table) {
  const auto span = [](std::uint32_t first, std::uint32_t last) {
    return first == last ? "step " + format_count(first)
                         : "step " + format_count(first) + " to step " + format_count(last);
  };
  std::string text = view.first_step == view.last_step ? "The loss, of " : "The loss, from ";
  text += span(view.first_step, view.last_step) + ". ";
  if (!view.has_losses) {
    text += view.not_finite == 0 ? "No loss is known" : "No loss was finite";
  } else if (view.not_finite == 0) {
    text += "All losses that were recorded are finite";
  } else {
    text += plural(view.not_finite, "step", "steps") + " had a loss that was not finite; finite ones: " +
            span(view.first_finite, view.last_finite);
  }
  if (view.has_losses) text += ", between " + format_short(view.lowest) + " and " + format_short(view.highest);
  if (view.logarithmic) text += ", on a logarithmic scale";
  return text + (has_table ? ". Steps with anything bad are listed in the table below." : ".");
}

}  // namespace nanhunt::reports
