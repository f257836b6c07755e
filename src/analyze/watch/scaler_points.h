// SPDX-License-Identifier: Apache-2.0
// The scale over the steps of a run of any length, thinned into stretches that keep their extremes and their skips.
#pragma once

#include <cstdint>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

class ScalerPoints {
 public:
  static constexpr std::size_t kMaxPoints = 4096;

  void add(const ScalerSection::Point& point);
  std::vector<ScalerSection::Point> points() const;  // in order, at most kMaxPoints; the last one always

 private:
  // Of a stretch of `width_` steps: least and largest scale, first and last skip.
  struct Stretch {
    ScalerSection::Point least, largest, first_skip, last_skip;
    bool any_skip = false;
    std::size_t steps = 0;
    void add(const Stretch& later);
    void append_to(std::vector<ScalerSection::Point>& out) const;
  };
  static constexpr std::size_t kMaxStretches = 1020;  // of up to 4 points each; room for the last one

  std::vector<Stretch> stretches_;
  std::size_t width_ = 1;
  ScalerSection::Point last_;
};

}  // namespace nanhunt::analyze
