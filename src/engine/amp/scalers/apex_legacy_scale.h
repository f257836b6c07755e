// SPDX-License-Identifier: Apache-2.0
// The rule of Apex's first dynamic loss scale.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "nanhunt/engine/loss_scalers.h"
#include "src/engine/amp/scalers/family.h"

namespace nanhunt::engine {

struct ApexLegacyScale {
  explicit ApexLegacyScale(const ApexLegacyScalerOptions& given) : options(given), scale(given.init_scale) {}

  std::string next(bool found_inf) {
    const double attempted = scale;
    if (found_inf) {
      scale = std::max(scale / options.scale_factor, 1.0);
      last_overflow_iter = cur_iter;
    } else if ((cur_iter - last_overflow_iter) % options.scale_window == 0) {
      scale *= options.scale_factor;
    }
    ++cur_iter;
    if (!found_inf) return {};
    return fmt::format("OVERFLOW! Skipping step. Attempted loss scale: {}, reducing to {}", python_text(attempted),
                       python_text(scale));
  }
  ScalerEvent described() const {
    ScalerEvent event;
    event.scale = scale;
    event.growth_tracker = (cur_iter - 1 - last_overflow_iter) % options.scale_window;
    event.growth_factor = options.scale_factor;
    event.backoff_factor = 1 / options.scale_factor;
    event.growth_interval = options.scale_window;
    event.text = "apex FP16_Optimizer";
    return event;
  }
  void for_each_number(const auto& call) {
    call("scale", scale);
    call("cur_iter", cur_iter);
    call("last_overflow_iter", last_overflow_iter);
  }

  ApexLegacyScalerOptions options;
  double scale;
  std::int64_t cur_iter = 0, last_overflow_iter = -1;
};

}  // namespace nanhunt::engine
