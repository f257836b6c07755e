// SPDX-License-Identifier: Apache-2.0
// fastai's learning rate finder, plugged into a Trainer's loop: the rate grows exponentially until the loss diverges.
// Whatever the trainer's precision, its loss scaler is part of what is put back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "nanhunt/engine/callback.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/lr_range.h"

namespace nanhunt::engine {

struct LrFinderOptions {
  double start_lr = 1e-7, end_lr = 10;
  std::uint32_t steps = 100;
  // Mistakes to plant: the ramp runs on to its end; what it has made of the weights is trained on.
  bool stop_div = true;
  bool restores = true;
};

struct LrCurve {
  std::vector<LrPoint> points;
  bool diverged = false;  // the smoothed loss passed 4 times its best, or became NaN
  std::optional<LrSuggestion> suggestion;
};

// From its construction on the steps of `trainer` are its ramp. Once it has finished, parameters, buffers, optimizer,
// random streams, scaler and learning rate are as they were when it was made, bit for bit; steps are counted on.
class LrFinder final : public Callback {
 public:
  explicit LrFinder(Trainer& trainer, const LrFinderOptions& options = {});
  ~LrFinder() override;
  void on_batch_end(StepResult& result) override;
  bool finished() const;
  LrCurve curve() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Plugs one in and trains until it has finished.
LrCurve find_lr(Trainer& trainer, const LrFinderOptions& options = {});

}  // namespace nanhunt::engine
