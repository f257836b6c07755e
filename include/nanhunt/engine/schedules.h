// SPDX-License-Identifier: Apache-2.0
// Learning rates that change during training. One schedule is one file in src/engine/optim/schedules.
#pragma once

#include <cstdint>
#include <functional>

#include "nanhunt/engine/callback.h"

namespace nanhunt::engine {

// The learning rate of a step, and of nothing else: a run that is restored sees the same again.
using LrSchedule = std::function<double(std::uint32_t step)>;

// torch.optim.lr_scheduler.OneCycleLR (two phases, cosine) and fastai's fit_one_cycle, without their momentum: up to
// max_lr from max_lr / div_factor, then down to that / final_div_factor, and there it stays.
struct OneCycleOptions {
  double max_lr = 1e-3;
  std::uint32_t steps = 0;
  double pct_start = 0.3;  // share of the steps that go up
  double div_factor = 25, final_div_factor = 1e4;
};
LrSchedule one_cycle(const OneCycleOptions& options);

// torch's LinearLR (start_factor 1 / warm_up_steps) and then CosineAnnealingLR down to min_lr, where it stays.
struct CosineOptions {
  double lr = 1e-3;
  std::uint32_t steps = 0;  // those of the warm-up included
  std::uint32_t warm_up_steps = 0;
  double min_lr = 0;
};
LrSchedule cosine_with_warm_up(const CosineOptions& options);

// lr = from * (to / from)^(step / steps), and `to` from step `steps` on. The ramp of a learning rate finder.
LrSchedule exponential_ramp(double from, double to, std::uint32_t steps);

// Plugs a schedule into a Trainer's loop (TrainerOptions::callbacks).
CallbackFactory schedule_lr(LrSchedule schedule);

}  // namespace nanhunt::engine
