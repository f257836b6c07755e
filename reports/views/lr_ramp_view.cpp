// SPDX-License-Identifier: Apache-2.0
#include "reports/views/lr_ramp_view.h"

#include <algorithm>
#include <cmath>

#include "reports/views/numbers.h"
#include "reports/views/timeline_view.h"

namespace nanhunt::reports {
namespace {

constexpr int kRateDigits = 3;

std::vector<LrPoint> spread(const std::vector<LrPoint>& points, std::size_t limit) {
  if (points.size() <= limit) return points;
  std::vector<LrPoint> out;
  for (std::size_t i = 0; i < limit; ++i) out.push_back(points[i * (points.size() - 1) / (limit - 1)]);
  return out;
}

std::string rate(double lr) { return format_short(lr, kRateDigits); }

}  // namespace

LrRampView view_lr_ramp(const LrRamp& ramp) {
  LrRampView view;
  if (ramp.points.empty()) return view;
  view.first_lr = ramp.points.front().lr;
  view.last_lr = ramp.points.back().lr;
  view.points = spread(ramp.points, kLrPoints);
  for (const LrPoint& point : view.points) {
    for (const double loss : {point.loss, point.smoothed}) {
      if (!std::isfinite(loss)) continue;
      view.lowest = view.has_losses ? std::min(view.lowest, loss) : loss;
      view.highest = view.has_losses ? std::max(view.highest, loss) : loss;
      view.has_losses = true;
    }
  }
  view.logarithmic = view.has_losses && view.lowest > 0 && view.highest / view.lowest > kLogarithmicFrom;
  const auto at_stop = [&](const LrPoint& point) { return ramp.stops_at && point.step == *ramp.stops_at; };
  const auto stop = std::find_if(ramp.points.begin(), ramp.points.end(), at_stop);
  if (stop != ramp.points.end()) view.stop_lr = stop->lr;
  view.caption = "The loss of each step (dots) and its smoothed average (line) over the learning rate, from " +
                 rate(view.first_lr) + " at step " + format_count(ramp.first_step) + " to " + rate(view.last_lr) +
                 " at step " + format_count(ramp.points.back().step);
  if (view.logarithmic) view.caption += "; losses on a logarithmic scale";
  view.caption += ".";
  view.answer = view.stop_lr ? "At a rate of " + rate(*view.stop_lr) + " (step " + format_count(*ramp.stops_at) +
                                   ") the loss had diverged: a finder stops there."
                             : "The loss did not diverge up to there.";
  if (ramp.suggestion) {
    view.suggested_lr = ramp.suggestion->steepest;
    view.answer += " The smoothed loss falls fastest at " + rate(ramp.suggestion->steepest) +
                   "; a tenth of the rate of its minimum is " + rate(ramp.suggestion->tenth_of_lowest) + ".";
  } else {
    view.answer += " There are too few steps to suggest a rate.";
  }
  for (const LrPoint& point : spread(ramp.points, kLrRows)) {
    view.rows.push_back(
        {format_count(point.step), rate(point.lr), format_short(point.loss), format_short(point.smoothed)});
  }
  return view;
}

}  // namespace nanhunt::reports
