// SPDX-License-Identifier: Apache-2.0
// A training loop whose step can be replayed: same parameters, state, scale, batch and RNG give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/module.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct Batch {
  Tensor inputs;
  Tensor targets;
  std::vector<std::int64_t> sample_ids;  // row i is this sample of the data set
};

// Batch of a step: a pure function of the step, so that a replay sees the same one. With several micro-batches a step,
// micro-batch m of a step is number step * micro_batches + m.
using BatchSource = std::function<Batch(std::uint32_t step)>;
// Runs with current module "<loss>" and phase loss.
using LossFunction = std::function<Tensor(const Tensor& output, const Batch& batch)>;

struct TrainerOptions {
  std::optional<AutocastOptions> autocast = {};  // around forward and loss
  std::optional<GradScalerOptions> scaler = {};  // static with dynamic = false
  std::uint32_t micro_batches = 1;               // their gradients add up before the one optimizer step
  bool average_micro_batches = true;             // each loss is divided by their number
  std::optional<double> clip_norm = {};          // of all gradients together, unscaled
  // Mistakes to plant: scaled gradients clipped; gradients of a skipped step kept, so that the next ones add to them.
  bool clip_before_unscale = false;
  bool keep_skipped_gradients = false;
};

struct StepResult {
  std::uint32_t step = 0;
  double loss = 0;       // summed over micro-batches, as divided, unscaled
  bool skipped = false;  // the scaler held the optimizer back
  double scale = 1;      // with which the loss was scaled
};

class Trainer {
 public:
  Trainer(std::unique_ptr<Module> model, std::unique_ptr<Optimizer> optimizer, BatchSource batches, LossFunction loss,
          const TrainerOptions& options = {});
  ~Trainer();

  // Data, zero_grad, forward and loss, scale, backward (all of these per micro-batch, but gradients are zeroed once),
  // unscale, clip, door, optimizer or skip, update of the scale. Marks batch and labels, the loss, door gradients (as
  // the optimizer would use them: unscaled and clipped, also in a step that is skipped), parameters and state (those
  // also before step 0).
  StepResult step();
  std::uint32_t next_step() const;

  Module& model();
  Optimizer& optimizer();
  GradScaler* scaler();  // null without
  const TrainerOptions& options() const;

  // Called with gradients as the optimizer would use them, before it runs or is held back; not observed. For reference
  // optimizers in tests and replays.
  void set_door_callback(std::function<void(Trainer&)> callback);

  struct Snapshot;
  std::shared_ptr<const Snapshot> snapshot() const;  // deep copies
  void restore(const Snapshot& snapshot);            // the next step() repeats the one after the snapshot

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanhunt::engine
