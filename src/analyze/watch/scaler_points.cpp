// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/scaler_points.h"

#include <algorithm>
#include <array>

namespace nanhunt::analyze {

void ScalerPoints::Stretch::add(const Stretch& later) {
  if (later.least.scale < least.scale) least = later.least;
  if (later.largest.scale > largest.scale) largest = later.largest;
  if (later.any_skip) {
    if (!any_skip) first_skip = later.first_skip;
    last_skip = later.last_skip;
    any_skip = true;
  }
  steps += later.steps;
}

void ScalerPoints::Stretch::append_to(std::vector<ScalerSection::Point>& out) const {
  std::array<ScalerSection::Point, 4> all = {least, largest, least, largest};
  if (any_skip) {
    all[2] = first_skip;
    all[3] = last_skip;
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  const std::size_t before = out.size();
  for (const ScalerSection::Point& point : all) {
    if (out.size() == before || out.back().step != point.step) out.push_back(point);
  }
}

void ScalerPoints::add(const ScalerSection::Point& point) {
  last_ = point;
  const Stretch one{point, point, point, point, point.skipped, 1};
  if (!stretches_.empty() && stretches_.back().steps < width_) {
    stretches_.back().add(one);
    return;
  }
  // Until the first merge each stretch is one point, so all of them fit.
  if (stretches_.size() >= (width_ == 1 ? kMaxPoints - 1 : kMaxStretches)) {
    std::vector<Stretch> merged;
    do {
      merged.clear();
      for (std::size_t i = 0; i < stretches_.size(); ++i) {
        if (i % 2 == 0) {
          merged.push_back(stretches_[i]);
        } else {
          merged.back().add(stretches_[i]);
        }
      }
      stretches_.swap(merged);
      width_ *= 2;
    } while (stretches_.size() >= kMaxStretches);
  }
  if (!stretches_.empty() && stretches_.back().steps < width_) {
    stretches_.back().add(one);
  } else {
    stretches_.push_back(one);
  }
}

std::vector<ScalerSection::Point> ScalerPoints::points() const {
  std::vector<ScalerSection::Point> out;
  for (const Stretch& stretch : stretches_) stretch.append_to(out);
  if (!out.empty() && out.back().step != last_.step) out.push_back(last_);
  return out;
}

}  // namespace nanhunt::analyze
