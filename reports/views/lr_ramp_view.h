// SPDX-License-Identifier: Apache-2.0
// The loss over the learning rate, where a finder's ramp was recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

inline constexpr std::size_t kLrPoints = 480;
inline constexpr std::size_t kLrRows = 40;

struct LrRow {
  std::string step, lr, loss, smoothed;
};

struct LrRampView {
  double first_lr = 0, last_lr = 0;
  std::vector<LrPoint> points;  // by rate, thinned; losses may be anything
  bool has_losses = false;      // a finite one
  double lowest = 0, highest = 0;  // of the finite ones, smoothed or not
  bool logarithmic = false;
  std::optional<double> stop_lr, suggested_lr;
  std::string caption;  // what the picture shows
  std::string answer;   // what the finder would say
  std::vector<LrRow> rows;  // evenly spread
};

LrRampView view_lr_ramp(const LrRamp& ramp);

}  // namespace nanhunt::reports
