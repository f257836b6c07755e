// SPDX-License-Identifier: Apache-2.0
// What a Trainer is made of: trainer.cpp runs steps, trainer_replay.cpp runs one again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/engine/trainer.h"

namespace nanhunt::engine {

inline std::uint32_t version_of(const Tensor& tensor) { return tensor.defined() ? tensor.version() : 0; }

// What a step began with, and the batches it loaded.
struct StepStart {
  struct KeptBatch {
    Batch batch;
    std::uint32_t inputs_version = 0, targets_version = 0;
  };
  bool kept = false;  // all below is there
  std::uint32_t step = 0;
  bool keep_gradients = false;
  std::vector<Tensor> kept_gradients;  // in the order of the optimizer's parameters; undefined: none
  std::vector<Tensor> buffers;         // copies, in the order of named_buffers()
  std::vector<RandomStream*> streams;  // of the model
  std::vector<std::uint64_t> random_positions;
  bool drew_elsewhere = false;  // forward, loss or backward drew from another stream
  std::unique_ptr<LossScaler> scaler;  // a copy
  double scale = 1;
  double lr = 0;
  std::vector<std::uint32_t> parameter_versions;
  std::vector<KeptBatch> batches;  // by micro-batch
};

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
  bool stepping = false, optimizer_ran = false;          // in the step at hand
  std::string ended_by;                                  // why the scaler ended training
  bool stopped_by_anomaly = false;                       // the step at hand was
  std::vector<Tensor> unread_losses;                     // of the step at hand, on a device
  bool keeps_start = false;                              // for replays
  StepStart start;                                       // of the step at hand

  void join_ranks();
  void keep_start();
  // In a replay the batches are those of `start`. False: there was no loss, and there is nothing to step by.
  bool run_to_boundary(StepResult& result, bool replay);
  // Adds what run_to_boundary() did not wait for. To be called once all work of the step is on its way.
  void read_losses(StepResult& result);
  bool step_optimizer();  // true if it ran
  void mark_changed_buffers();
  // The pass of this step, if it has one.
  void validate(StepResult& result);
  std::string why_not_replayable(const OptimizerCopy* before) const;

 private:
  void mark_start();
  Batch load_batch(std::uint32_t step, std::uint32_t micro_batch, bool replay);
  Batch fetch_batch(std::uint32_t step, std::uint32_t micro_batch);
  Tensor compute_loss(const Batch& batch);
  void run_backward(Tensor value, const LossOfStep& which);
  void prepare_gradients();
  double validation_loss(const Batch& batch);
};

// Loss scale and clipping of a trainer's options, plugged into its loop like any other callback.
std::unique_ptr<Callback> make_scaling(Trainer::Impl& run);

}  // namespace nanhunt::engine
