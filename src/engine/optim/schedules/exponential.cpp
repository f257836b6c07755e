// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "nanhunt/engine/schedules.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

LrSchedule exponential_ramp(double from, double to, std::uint32_t steps) {
  if (!(from > 0) || !(to > 0) || !std::isfinite(from) || !std::isfinite(to)) {
    fail("exponential_ramp", "learning rates above 0", "one that is not");
  }
  if (steps == 0) fail("exponential_ramp", "1 or more steps", "0");
  return [from, to, steps](std::uint32_t step) {
    return step >= steps ? to : from * std::pow(to / from, static_cast<double>(step) / steps);
  };
}

}  // namespace nanhunt::engine
