// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/lr_table.h"

#include <fmt/format.h>

#include "reports/views/lr_ramp_view.h"

namespace nanhunt::cli {

LrRamp ramp_of(const engine::LrCurve& curve) {
  LrRamp ramp;
  ramp.points = curve.points;
  ramp.suggestion = curve.suggestion;
  if (curve.points.empty()) return ramp;
  ramp.first_step = curve.points.front().step;
  ramp.last_step = curve.points.back().step;
  if (curve.diverged) ramp.stops_at = ramp.last_step;
  return ramp;
}

std::string lr_table(const LrRamp& ramp) {
  const reports::LrRampView view = reports::view_lr_ramp(ramp);
  std::string text = fmt::format("{:>6} {:>14} {:>12} {:>14}\n", "step", "learning rate", "loss", "smoothed loss");
  for (const reports::LrRow& row : view.rows) {
    text += fmt::format("{:>6} {:>14} {:>12} {:>14}\n", row.step, row.lr, row.loss, row.smoothed);
  }
  return text + view.answer + "\n";
}

}  // namespace nanhunt::cli
