// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/lr_finder.h"

#include "nanhunt/engine/schedules.h"

namespace nanhunt::engine {

struct LrFinder::State {
  Trainer& trainer;
  LrFinderOptions options;
  LrSchedule ramp;
  std::uint32_t first_step;
  double lr_before;
  std::shared_ptr<const Trainer::Snapshot> before;
  LrRange range = {};
  bool diverged = false, finished = false;
};

LrFinder::LrFinder(Trainer& trainer, const LrFinderOptions& options)
    : state_(new State{.trainer = trainer,
                       .options = options,
                       .ramp = exponential_ramp(options.start_lr, options.end_lr, options.steps),
                       .first_step = trainer.next_step(),
                       .lr_before = trainer.optimizer().options().lr,
                       .before = options.restores ? trainer.snapshot() : nullptr}) {
  trainer.optimizer().set_lr(state_->ramp(0));
}

LrFinder::~LrFinder() = default;

void LrFinder::on_batch_end(StepResult& result) {
  State& state = *state_;
  if (state.finished) return;
  Optimizer& optimizer = state.trainer.optimizer();
  // Another callback may have set the next step's rate already.
  const bool diverges = state.range.add(result.step, state.ramp(result.step - state.first_step), result.loss);
  state.diverged = state.diverged || diverges;
  const std::uint32_t next = result.step - state.first_step + 1;
  state.finished = next >= state.options.steps || (diverges && state.options.stop_div) || !result.ended_by.empty();
  if (!state.finished) {
    optimizer.set_lr(state.ramp(next));
    return;
  }
  if (state.before) state.trainer.restore(*state.before, /*steps_too=*/false);
  optimizer.set_lr(state.lr_before);
}

bool LrFinder::finished() const { return state_->finished; }

LrCurve LrFinder::curve() const {
  const std::vector<LrPoint>& points = state_->range.points();
  return {.points = points, .diverged = state_->diverged, .suggestion = suggest_lr(points)};
}

LrCurve find_lr(Trainer& trainer, const LrFinderOptions& options) {
  auto made = std::make_unique<LrFinder>(trainer, options);
  const LrFinder& finder = *made;
  trainer.add_callback(std::move(made));
  while (!finder.finished()) trainer.step();
  return finder.curve();
}

}  // namespace nanhunt::engine
