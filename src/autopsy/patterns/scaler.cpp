// SPDX-License-Identifier: Apache-2.0
// What the loss scale says: scaler_collapsing, scaler_calibrating.
#include <algorithm>

#include "src/autopsy/judge.h"
#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

// Falls of the scale that end at `end`, without a step that worked in between. A scale that stays at the lowest that it
// can have goes on falling as far as is known.
std::size_t falls_before(const std::vector<double>& scales, std::size_t end) {
  std::size_t falls = 0;
  for (std::size_t i = end; i > 1; --i) {
    const double now = scales[i - 1], before = scales[i - 2];
    const bool lower = is_finite(now) && is_finite(before) && now < before;
    if (!lower) break;
    ++falls;
  }
  return falls;
}

const Traceback* exhausted(const Evidence& evidence) {
  for (const Traceback& one : evidence.tracebacks) {
    if (one.ended == Ended::kByScaleExhausted) return &one;
  }
  return nullptr;
}

struct LongestFall {
  std::size_t falls = 0, end = 0;
};

LongestFall longest_fall(const std::vector<double>& scales) {
  LongestFall best;
  std::size_t falls = 0;
  for (std::size_t i = 1; i < scales.size(); ++i) {
    falls = is_finite(scales[i]) && is_finite(scales[i - 1]) && scales[i] < scales[i - 1] ? falls + 1 : 0;
    if (falls > best.falls) best = {falls, i + 1};
  }
  return best;
}

// Each bad gradient norm is one that a scaler met as it is meant to: its scale fell right there, or the rate had not
// yet left 0, because no step was made.
bool scaler_met_gradients(const Curves& curves) {
  const Curve& norm = curves.grad_norm;
  if (!norm.bad()) return false;
  const auto fell_at = [&](double at) {
    for (std::size_t i = 1; i < curves.scales.size(); ++i) {
      const bool beside = curves.scale_at[i] == at || curves.scale_at[i - 1] == at;
      if (beside && curves.scales[i] < curves.scales[i - 1]) return true;
    }
    return false;
  };
  const auto no_step_yet = [&](std::size_t point) {
    if (point >= limits::kCalibration || !curves.comparable(norm, curves.learning_rate)) return false;
    const std::size_t rate = curves.learning_rate.last_at(norm.point(point).at);
    return rate != kNoPoint && curves.learning_rate.point(rate).value == 0;
  };
  std::size_t good = 0;
  for (std::size_t i = 0; i < norm.size(); ++i) {
    if (is_finite(norm.point(i).value)) {
      ++good;
    } else if (!fell_at(norm.point(i).at) && !no_step_yet(i)) {
      return false;
    }
  }
  return good >= limits::kStart && is_finite(norm.point(norm.size() - 1).value);
}

}  // namespace

std::optional<Guess> judge_scaler_collapsing(const Curves& curves) {
  const Traceback* minimum = exhausted(*curves.evidence);
  const LongestFall fall = longest_fall(curves.scales);
  double lowest = kUnknown;
  for (const double scale : curves.scales) {
    if (is_finite(scale) && (!is_finite(lowest) || scale < lowest)) lowest = scale;
  }
  const bool below = is_finite(lowest) && lowest < limits::kLowestScale && fall.falls >= 2;
  const bool at_end = fall.falls != 0 && falls_before(curves.scales, curves.scales.size()) == fall.falls;
  const bool strong = minimum != nullptr || below || (fall.falls >= limits::kCollapse && at_end);
  if (!strong && !(fall.falls >= limits::kCalibrationFalls && at_end)) return std::nullopt;
  Guess out;
  out.confidence = strong ? Confidence::kLikely : Confidence::kPossible;
  if (fall.falls != 0) {
    const std::size_t first = fall.end - fall.falls;  // the first fall; before it the scale was good
    out.began.unit = curves.scale_unit;
    if (is_finite(curves.scale_at[first])) out.began.first_bad = curves.scale_at[first];
    if (is_finite(curves.scale_at[first - 1])) out.began.last_good = curves.scale_at[first - 1];
    out.evidence.push_back({"the loss scale fell " + std::to_string(fall.falls) +
                                " times without a step that worked, from " + number_text(curves.scales[first - 1]) +
                                " to " + number_text(curves.scales[fall.end - 1]),
                            curves.scale_source});
  }
  if (minimum != nullptr) out.evidence.push_back({"the run ended with: " + minimum->message, minimum->source});
  out.unlikely = {"a scale that is merely too high: lower ones failed as well"};
  out.checks = {"the first operation that makes NaN or Inf, forward or backward: scaling cannot help it"};
  return out;
}

std::optional<Guess> judge_scaler_calibrating(const Curves& curves) {
  if (curves.loss.bad() || curves.loss.size() == 0) return std::nullopt;
  if (scaler_met_gradients(curves)) {
    Guess out;
    out.confidence = Confidence::kLikely;
    out.evidence.push_back({"where gradients overflowed no step was made, and the run went on with finite losses",
                            curves.grad_norm.series->source});
    return out;
  }
  // Gradients may be bad in the skipped steps at the start, and nowhere else.
  if (curves.grad_norm.bad()) {
    std::size_t last = curves.grad_norm.first_bad;
    for (std::size_t i = last; i < curves.grad_norm.size(); ++i) {
      if (!is_finite(curves.grad_norm.point(i).value)) last = i;
    }
    if (last >= limits::kCalibration || last + limits::kHealthyStart >= curves.grad_norm.size()) return std::nullopt;
  }
  const LongestFall fall = longest_fall(curves.scales);
  const std::size_t skips = curves.evidence->skipped.size();
  if (fall.falls == 0 && skips == 0) return std::nullopt;
  if (fall.falls > limits::kCalibration || skips > limits::kCalibration) return std::nullopt;
  // It must go on well: by scales that no longer fall, or losses after the last skipped step.
  const bool calm_scale = curves.scale.size() > 1 && fall.end + 1 < curves.scales.size();
  const bool goes_on = skips != 0 && curves.loss.size() >= curves.evidence->skipped.back().entries_before + 2;
  if (!calm_scale && !goes_on) return std::nullopt;
  if (judge_scaler_collapsing(curves)) return std::nullopt;
  Guess out;
  out.confidence = Confidence::kLikely;
  out.evidence.push_back(
      {"the loss scale fell " + std::to_string(std::max(fall.falls, skips)) + " times, then the run went on",
       curves.scale_source});
  return out;
}

}  // namespace nanhunt::autopsy
