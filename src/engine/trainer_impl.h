// SPDX-License-Identifier: Apache-2.0
// What a Trainer is made of.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/trainer.h"

namespace nanhunt::engine {

struct Trainer::Impl {
  std::unique_ptr<Module> model;
  std::unique_ptr<Optimizer> optimizer;
  BatchSource batches;
  LossFunction loss;
  TrainerOptions options;
  std::unique_ptr<LossScaler> scaler;
  std::vector<std::unique_ptr<Callback>> callbacks;
  std::unique_ptr<DataParallel> parallel;
  std::function<void(Trainer&)> boundary_callback;
  std::uint32_t next_step = 0;
  bool keep_gradients = false;                           // of the step before, which was skipped
  bool start_marked = false;                             // observers know what the coming step starts from
  std::map<std::string, std::uint32_t> buffer_versions;  // as last marked
  std::string ended_by;                                  // why the scaler ended training
  std::vector<Tensor> unread_losses;                     // of the step at hand, on a device

  void join_ranks();
  bool run_to_boundary(StepResult& result);  // false: there was no loss, and there is nothing to step by
  // Adds what run_to_boundary() did not wait for. To be called once all work of the step is on its way.
  void read_losses(StepResult& result);
  bool step_optimizer();  // true if it ran
  void mark_changed_buffers();
  // The pass of this step, if it has one.
  void validate(StepResult& result);

 private:
  void mark_start();
  Batch load_batch(std::uint32_t step, std::uint32_t micro_batch);
  Tensor compute_loss(const Batch& batch);
  void run_backward(Tensor value, const LossOfStep& which);
  void prepare_gradients();
  double validation_loss(const Batch& batch);
};

// Loss scale and clipping of a trainer's options, plugged into its loop like any other callback.
std::unique_ptr<Callback> make_scaling(Trainer::Impl& run);

}  // namespace nanhunt::engine
