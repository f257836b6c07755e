// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numbers>

#include "nanhunt/engine/schedules.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

double anneal(double from, double to, double share) {
  return to + (from - to) / 2 * (std::cos(std::numbers::pi * share) + 1);
}

}  // namespace

LrSchedule one_cycle(const OneCycleOptions& options) {
  const double top = options.pct_start * options.steps - 1, end = static_cast<double>(options.steps) - 1;
  if (!(options.max_lr > 0) || !(options.div_factor > 0) || !(options.final_div_factor > 0)) {
    fail("one_cycle", "a learning rate and factors above 0", "one that is not");
  }
  if (!(top > 0) || !(top < end)) fail("one_cycle", "a step or more in each phase", std::to_string(options.steps) + " steps");
  return [options, top, end](std::uint32_t step) {
    const double first = options.max_lr / options.div_factor, last = first / options.final_div_factor;
    const double at = step;
    if (at <= top) return anneal(first, options.max_lr, at / top);
    return at < end ? anneal(options.max_lr, last, (at - top) / (end - top)) : last;
  };
}

}  // namespace nanhunt::engine
