// SPDX-License-Identifier: Apache-2.0
// A training loop whose step can be replayed: same parameters, state, batch and RNG give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nanhunt/engine/module.h"
#include "nanhunt/engine/optimizer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {

struct Batch {
  Tensor inputs;
  Tensor targets;
  std::vector<std::int64_t> sample_ids;  // row i is this sample of the data set
};

// Batch of a step: a pure function of the step, so that a replay sees the same one.
using BatchSource = std::function<Batch(std::uint32_t step)>;
// Runs with current module "<loss>" and phase loss.
using LossFunction = std::function<Tensor(const Tensor& output, const Batch& batch)>;

struct StepResult {
  std::uint32_t step = 0;
  double loss = 0;
  bool skipped = false;
};

class Trainer {
 public:
  Trainer(std::unique_ptr<Module> model, std::unique_ptr<Optimizer> optimizer, BatchSource batches, LossFunction loss);
  ~Trainer();

  // data, zero_grad, forward, loss, backward, door, optimizer. Marks batch and labels, the loss, door gradients,
  // parameters and state (those also before step 0).
  StepResult step();
  std::uint32_t next_step() const;

  Module& model();
  Optimizer& optimizer();

  // Called with gradients in place, before the optimizer runs; not observed. For reference optimizers in tests and replays.
  void set_door_callback(std::function<void(Trainer&)> callback);

  struct Snapshot;
  std::shared_ptr<const Snapshot> snapshot() const;  // deep copies
  void restore(const Snapshot& snapshot);            // the next step() repeats the one after the snapshot

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanhunt::engine
