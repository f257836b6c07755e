// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/curves.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

double median_of(std::vector<double> values) {
  if (values.empty()) return kUnknown;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::size_t first_bad_of(const Series& series) {
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    if (!is_finite(series.points[i].value)) return i;
  }
  return kNoPoint;
}

// The last values of a run alone are no curve.
bool is_curve(const Evidence& evidence, const Series& series) {
  if (series.points.empty() || evidence.sources[series.source].format == "W&B summary") return false;
  // A column "scale" may be of anything; loss scales begin large.
  const bool other = series.quantity == Quantity::kLossScale && series.name == "scale" &&
                     !(series.points.front().value >= limits::kFirstScale);
  return !other;
}

// What says most comes first: what went bad, in steps, early, with many points. `like`: of the same source rather.
Curve choose(const Evidence& evidence, Quantity quantity, const Series* like) {
  Curve best;
  auto rank = [&](const Series& series, std::size_t bad) {
    const bool elsewhere = like != nullptr && (series.source != like->source || series.unit != like->unit);
    const double at = bad == kNoPoint ? 0 : series.points[bad].at;
    return std::tuple(elsewhere, bad == kNoPoint, series.unit, at, is_part_of_loss(series.name),
                      -static_cast<double>(series.points.size()));
  };
  for (const Series& series : evidence.series) {
    if (series.quantity != quantity || !is_curve(evidence, series)) continue;
    const std::size_t bad = first_bad_of(series);
    if (!best.there() || rank(series, bad) < rank(*best.series, best.first_bad)) best = {&series, bad};
  }
  return best;
}

double lowest_of(const Series& series) {
  double lowest = kUnknown;
  for (const Point& point : series.points) {
    if (is_finite(point.value) && !(point.value >= lowest)) lowest = point.value;
  }
  return lowest;
}

// A loss scale that fell below what scales anything up says more than another one that stands still: what a scaler notes
// at each overflow beside the column of a table.
void prefer_fallen_scale(const Evidence& evidence, Curve& scale) {
  for (const Series& series : evidence.series) {
    if (series.quantity != Quantity::kLossScale || !scale.there() || !is_curve(evidence, series)) continue;
    if (lowest_of(series) < limits::kLowestScale && !(lowest_of(*scale.series) < limits::kLowestScale))
      scale = {&series, first_bad_of(series)};
  }
}

void fill_scales(Curves& curves) {
  if (curves.scale.size() > 1) {
    for (const Point& point : curves.scale.series->points) {
      curves.scales.push_back(point.value);
      curves.scale_at.push_back(point.at);
    }
    curves.scale_source = curves.scale.series->source;
    curves.scale_unit = curves.scale.series->unit;
    return;
  }
  if (curves.evidence->skipped.empty()) return;
  curves.scale_source = curves.evidence->skipped.front().source;
  std::size_t before = 0;
  for (const SkippedStep& skip : curves.evidence->skipped) {
    if (skip.source != curves.scale_source) continue;
    if (!curves.scales.empty() && skip.entries_before > before + 1) {  // steps that worked lie between the two
      curves.scales.push_back(kUnknown);
      curves.scale_at.push_back(kUnknown);
    }
    before = skip.entries_before;
    curves.scales.push_back(skip.scale_after);
    const auto at = curves.position_before(skip.source, skip.entries_before);
    curves.scale_at.push_back(at.value_or(kUnknown));
    if (at) curves.scale_unit = curves.loss.series->unit;
  }
}

}  // namespace

std::optional<std::size_t> Curve::restart_before(std::size_t point) const {
  std::optional<std::size_t> last;
  for (const std::size_t restart : series->restarts) {
    if (restart <= point && restart != 0) last = restart;
  }
  return last;
}

std::vector<double> Curve::good_before(std::size_t end) const {
  std::vector<double> values;
  if (!there()) return values;
  for (std::size_t i = end == 0 ? 0 : restart_before(end - 1).value_or(0); i < std::min(end, size()); ++i) {
    if (is_finite(point(i).value)) values.push_back(point(i).value);
  }
  return values;
}

Growth Curve::growth_before(std::size_t end) const {
  std::vector<double> values = good_before(end);
  for (double& value : values) value = std::fabs(value);
  Growth out;
  if (values.size() < 2) return out;
  out.level = median_of({values.begin(), values.begin() + static_cast<std::ptrdiff_t>((values.size() + 1) / 2)});
  const std::size_t tail = std::min<std::size_t>(3, values.size() - 1);
  out.highest = *std::max_element(values.end() - static_cast<std::ptrdiff_t>(tail), values.end());
  out.ratio = out.level > 0 ? out.highest / out.level : 1;
  double record = values[0];
  for (const double value : values) {
    if (value > record * limits::kRecordHigh) ++out.rises;
    record = std::max(record, value);
  }
  return out;
}

std::size_t Curve::last_at(double position) const {
  std::size_t found = kNoPoint;
  for (std::size_t i = 0; i < size() && point(i).at <= position; ++i) found = i;
  return found;
}

bool Curves::comparable(const Curve& a, const Curve& b) const {
  return a.there() && b.there() && a.series->unit == b.series->unit &&
         (a.series->unit != Unit::kEntry || a.series->source == b.series->source);
}

bool Curves::gradient_first() const {
  if (!grad_norm.bad()) return false;
  if (!loss.bad()) return true;
  return comparable(loss, grad_norm) && grad_norm.point(grad_norm.first_bad).at < loss.point(loss.first_bad).at;
}

std::optional<double> Curves::position_before(std::size_t source, std::size_t entries) const {
  if (!loss.there() || loss.series->source != source || entries == 0 || entries > loss.size()) return std::nullopt;
  return loss.point(entries - 1).at;
}

const Series* Curves::loss_that_stayed_finite() const {
  if (!loss.bad() || !is_part_of_loss(loss.series->name)) return nullptr;
  const double bad_at = loss.point(loss.first_bad).at;
  for (const Series& series : evidence->series) {
    if (series.quantity != Quantity::kLoss || series.source != loss.series->source || series.unit != loss.series->unit)
      continue;
    if (is_part_of_loss(series.name) || first_bad_of(series) != kNoPoint) continue;
    if (!series.points.empty() && series.points.back().at >= bad_at) return &series;
  }
  return nullptr;
}

std::string Curves::setting(std::string_view key) const {
  for (const Setting& setting : evidence->settings) {
    if (setting.key == key) return setting.value;
  }
  return {};
}

bool Curves::has_fp16() const {
  const auto on = [](const std::string& value) { return value == "true" || value == "True" || value == "1"; };
  if (on(setting("fp16"))) return true;
  for (const std::string_view key : {"precision", "mixed_precision", "dtype", "torch_dtype", "amp"}) {
    const std::string value = setting(key);
    if (value == "16" || value == "16-mixed" || value == "16-true" || value.find("fp16") != std::string::npos ||
        (value.find("float16") != std::string::npos && value.find("bfloat16") == std::string::npos) ||
        value == "half") {
      return true;
    }
  }
  return false;
}

bool Curves::any_bad() const {
  return std::any_of(evidence->series.begin(), evidence->series.end(), [](const Series& series) {
    // A loss scale says what scalers do; an infinite one is how some of them begin.
    return series.quantity != Quantity::kSkipped && series.quantity != Quantity::kLossScale &&
           first_bad_of(series) != kNoPoint;
  });
}

Curves choose_curves(const Evidence& evidence) {
  Curves out;
  out.evidence = &evidence;
  out.loss = choose(evidence, Quantity::kLoss, nullptr);
  out.eval_loss = choose(evidence, Quantity::kEvalLoss, out.loss.series);
  out.grad_norm = choose(evidence, Quantity::kGradNorm, out.loss.series);
  out.learning_rate = choose(evidence, Quantity::kLearningRate, out.loss.series);
  out.scale = choose(evidence, Quantity::kLossScale, out.loss.series);
  prefer_fallen_scale(evidence, out.scale);
  out.skipped = choose(evidence, Quantity::kSkipped, out.loss.series);
  fill_scales(out);
  return out;
}

}  // namespace nanhunt::autopsy
