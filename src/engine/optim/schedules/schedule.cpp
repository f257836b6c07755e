// SPDX-License-Identifier: Apache-2.0
// A schedule as a callback of the loop. Each step sets the learning rate of the next.
#include "nanhunt/engine/schedules.h"
#include "nanhunt/engine/trainer.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

class Schedule final : public Callback {
 public:
  Schedule(Trainer& trainer, LrSchedule schedule) : trainer_(trainer), schedule_(std::move(schedule)) {
    trainer_.optimizer().set_lr(schedule_(trainer_.next_step()));
  }
  void on_batch_end(StepResult& result) override { trainer_.optimizer().set_lr(schedule_(result.step + 1)); }

 private:
  Trainer& trainer_;
  LrSchedule schedule_;
};

}  // namespace

CallbackFactory schedule_lr(LrSchedule schedule) {
  if (!schedule) fail("schedule_lr", "a schedule", "none");
  return [schedule = std::move(schedule)](Trainer& trainer) { return std::make_unique<Schedule>(trainer, schedule); };
}

}  // namespace nanhunt::engine
