// SPDX-License-Identifier: Apache-2.0
// Apex's rule of one loss scale.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {

struct ApexScale {
  explicit ApexScale(const ApexScalerOptions& given)
      : options(given), scale(given.loss_scale.value_or(std::min(given.max_loss_scale, given.init_scale))) {}

  bool dynamic() const { return !options.loss_scale; }
  std::string next(bool found_inf) {
    if (found_inf) {
      scale = std::max(scale / 2, options.min_loss_scale.value_or(0));
      unskipped = 0;
    } else {
      ++unskipped;
    }
    if (dynamic() && unskipped == options.scale_window) {
      scale = std::min(options.max_loss_scale, scale * 2);
      unskipped = 0;
    }
    if (!found_inf) return {};
    return fmt::format("Gradient overflow.  Skipping step, loss scaler {} reducing loss scale to {}", options.loss_id,
                       python_text(scale));
  }
  ScalerEvent described() const {
    ScalerEvent event;
    event.scale = scale;
    event.growth_tracker = unskipped;
    event.dynamic = dynamic();
    event.growth_factor = dynamic() ? 2 : 1;
    event.backoff_factor = dynamic() ? 0.5 : 1;
    event.growth_interval = options.scale_window;
    event.text = dynamic() ? "apex.amp" : "apex.amp, static";
    return event;
  }

  ApexScalerOptions options;
  double scale;
  std::int64_t unskipped = 0;
};

}  // namespace nanhunt::engine
