// SPDX-License-Identifier: Apache-2.0
// A training loop: same parameters, state, scale, batch and RNG give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/callback.h"
#include "nanhunt/engine/data_parallel.h"
#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/module.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct Batch {
  Tensor inputs;
  Tensor targets;
  std::vector<std::int64_t> sample_ids;  // row i is this sample of the data set
  std::uint32_t loss_id = 0;             // which of the step's losses it is for, where each has a scaler of its own
};

// Batch of a step: a pure function of the step, so that a run that is trained again sees the same one. With several
// micro-batches a step, micro-batch m of a step is number step * micro_batches + m.
using BatchSource = std::function<Batch(std::uint32_t step)>;
// Runs with current module "<loss>" and phase loss. An undefined tensor is no loss: nothing is learnt from the batch.
// Where a step's last micro-batch has none, unscale, clip, optimizer and update are left out, and observers are told
// that the step was given up.
using LossFunction = std::function<Tensor(const Tensor& output, const Batch& batch)>;

// A pass over data that nothing is learnt from: the model as in use (Module::train(false)), without gradients, forward and
// loss in phase validation.
struct ValidationOptions {
  BatchSource batches;                           // number 0 to count - 1, in every pass
  std::uint32_t count = 1;
  std::uint32_t every = 1;                       // steps: a pass ends each that many
  std::optional<AutocastOptions> autocast = {};  // around it, whatever training has
};

struct TrainerOptions {
  std::optional<AutocastOptions> autocast = {};  // around forward and loss
  std::optional<ScalerChoice> scaler = {};       // of any family: GradScalerOptions, ApexScalerOptions, ...
  std::uint32_t micro_batches = 1;               // their gradients add up before the one optimizer step
  bool average_micro_batches = true;             // each loss is divided by their number
  std::optional<double> clip_norm = {};          // of all gradients together, unscaled
  std::optional<ValidationOptions> validation = {};
  bool detect_anomaly = false;  // backward runs under DetectAnomaly (anomaly.h)
  // This trainer is one of several ranks; its batches are this rank's. Gradients are reduced in the backward of the last
  // micro-batch, or in each where the scaler unscales after each. Parameters and masters begin as rank 0's. Loss scalers
  // agree on an overflow: what one rank found, all have found.
  std::optional<DataParallelOptions> data_parallel = {};
  // Mistakes to plant: scaled gradients clipped; gradients of a skipped step kept, so that the next ones add to them.
  bool clip_before_unscale = false;
  bool keep_skipped_gradients = false;
  std::vector<CallbackFactory> callbacks = {};  // in this order, before scaler and clipping, which are one too
};

struct StepResult {
  std::uint32_t step = 0;
  double loss = 0;       // summed over micro-batches, as divided, unscaled
  bool skipped = false;  // the scaler held the optimizer back, or there was no loss
  double scale = 1;      // with which the loss was scaled
  std::optional<double> validation_loss = {};  // mean over the batches, where a pass ended the step
  std::string message = {};   // what the scaler's library prints after an overflow
  std::string ended_by = {};  // why it ends training with this step
};

class Trainer {
 public:
  Trainer(std::unique_ptr<Module> model, std::unique_ptr<Optimizer> optimizer, BatchSource batches, LossFunction loss,
          const TrainerOptions& options = {});
  ~Trainer();

  // Data, zero_grad, forward and loss, scale, backward (all of these per micro-batch, but gradients are zeroed once),
  // unscale, clip, boundary, optimizer or skip, update of the scale. Marks batch and labels, the loss, boundary gradients (as
  // the optimizer would use them: unscaled and clipped, also in a step that is skipped), parameters and state (those
  // also before step 0). What a step throws ends it: observers are told, and the next one is the next. A validation comes last; its batches count on as micro-batches, and of each the batch, labels, what
  // the model gave and its loss are marked, the last two as outputs. Throws std::runtime_error once the scaler's library has ended training (StepResult::ended_by).
  StepResult step();
  std::uint32_t next_step() const;

  Module& model();
  Optimizer& optimizer();
  LossScaler* scaler();  // null without
  DataParallel* data_parallel();  // null without
  const TrainerOptions& options() const;
  Callback& add_callback(std::unique_ptr<Callback> callback);  // after the others; not inside step()

  // Called with gradients as the optimizer would use them, before it runs or is held back; not observed. For reference
  // optimizers.
  void set_boundary_callback(std::function<void(Trainer&)> callback);

  struct Snapshot;
  std::shared_ptr<const Snapshot> snapshot() const;  // deep copies
  // The next step() repeats the one after the snapshot; not `steps_too`: its number is one that was not there yet.
  void restore(const Snapshot& snapshot, bool steps_too = true);

  struct Impl;  // src/engine only

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanhunt::engine
