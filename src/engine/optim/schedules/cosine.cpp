// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "nanhunt/engine/schedules.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

LrSchedule cosine_with_warm_up(const CosineOptions& options) {
  if (!(options.lr > 0) || !(options.min_lr >= 0)) fail("cosine_with_warm_up", "a learning rate above 0", "one that is not");
  if (options.steps <= options.warm_up_steps) {
    fail("cosine_with_warm_up", "more steps than those of the warm-up", std::to_string(options.steps));
  }
  return [options](std::uint32_t step) {
    if (step < options.warm_up_steps) {
      const double first = 1.0 / options.warm_up_steps;
      return options.lr * (first + (1 - first) * step / options.warm_up_steps);
    }
    if (step >= options.steps) return options.min_lr;
    const double share = static_cast<double>(step - options.warm_up_steps) / (options.steps - options.warm_up_steps);
    return options.min_lr + (options.lr - options.min_lr) * (1 + std::cos(std::numbers::pi * share)) / 2;
  };
}

}  // namespace nanhunt::engine
