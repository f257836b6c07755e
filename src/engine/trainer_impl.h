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
#include "src/engine/capture.h"

namespace nanhunt::engine {

// What a step began with, and the batches it loaded.
struct StepStart {
  struct HeldBatch {
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
  std::optional<GradScaler> scaler;
  double scale = 1;
  std::vector<std::uint32_t> parameter_versions;
  std::vector<HeldBatch> batches;  // by micro-batch
};

// When to try again what was refused: what a model or a loss did may have been of one step, and memory comes back.
class Patience {
 public:
  bool waits() { return left_ != 0 && left_-- != 0; }
  void lose() {
    left_ = next_;
    next_ *= 2;
  }

 private:
  std::uint64_t left_ = 0, next_ = 4;  // steps
};

// What a graph has been captured under: by what it is, in words.
using GraphSettings = std::vector<std::pair<const char*, std::vector<std::uint64_t>>>;

// What is captured of a step (trainer_graph.cpp).
struct StepGraph {
  struct Written {
    Tensor tensor;
    std::uint32_t times = 0;  // its version grows by one step
  };
  GraphUse use;
  bool warm = false, update_warm = false;  // it ran op by op before, so that a capture meets nothing new
  bool ran = false;                        // of the step at hand, up to unscaling
  Patience patience, update_patience;
  std::uint64_t strangers = 0;             // steps in a row that are not like the captured one
  GraphSettings settings;                  // what it was captured under (settings_now)
  std::vector<Batch> batches;              // by micro-batch; their contents are the step's
  std::vector<Tensor> losses, gradients;   // by micro-batch; by the optimizer's parameters, undefined: none
  std::vector<Written> written, updated;
  std::vector<std::int64_t> counted;  // what a step adds to the optimizer's counts
  std::unique_ptr<CapturedWork> work, update;

  void drop();  // what was captured, to be captured anew
};

struct Trainer::Impl {
  std::unique_ptr<Module> model;
  std::unique_ptr<Optimizer> optimizer;
  BatchSource batches;
  LossFunction loss;
  TrainerOptions options;
  std::optional<GradScaler> scaler;
  std::function<void(Trainer&)> door_callback;
  std::uint32_t next_step = 0;
  bool keep_gradients = false;                           // of the step before, which was skipped
  bool start_marked = false;                             // observers know what the coming step starts from
  std::map<std::string, std::uint32_t> buffer_versions;  // as last marked
  bool stepping = false, optimizer_ran = false;          // in the step at hand
  std::vector<Tensor> unread_losses;                     // of the step at hand, on a device
  bool keeps_start = false;                              // for replays
  StepStart start;                                       // of the step at hand
  std::vector<Batch> fetched;                            // for it, and not told yet
  std::unique_ptr<StepGraph> graphs;                     // null: not wanted when the step at hand began
  bool wants_graphs = false;

  void keep_start();
  // In a replay the batches are those of `start`.
  void run_to_door(StepResult& result, bool replay);
  // Adds what run_to_door() did not wait for. To be called once all work of the step is on its way.
  void read_losses(StepResult& result);
  bool step_optimizer();  // true if it ran
  // As run_to_door(), by a graph. False: nothing happened, and the step is to be run op by op.
  bool run_graph_to_door(StepResult& result);
  void follow_graphs_wanted();  // between steps
  void mark_changed_buffers();
  std::string why_not_replayable(const OptimizerCopy* before) const;

 private:
  void mark_start();
  Batch load_batch(std::uint32_t step, std::uint32_t micro_batch, bool replay);
  Batch fetch_batch(std::uint32_t step, std::uint32_t micro_batch);
  void tell_batch(const Batch& batch, std::uint32_t micro_batch);
  std::string why_no_graph() const;
  std::string why_not_this_step();
  std::string why_not_as_captured() const;
  GraphSettings settings_now() const;
  // Fetches the step's batches and copies them to where a graph reads them; false: one cannot be, and those after it
  // are not fetched.
  bool feed_batches(std::uint32_t step, bool is_new);
  bool capture_step();
  bool update_by_graph();
  bool capture_update();
  Tensor compute_loss(const Batch& batch);
  void run_backward(const Tensor& value);
  void prepare_gradients();
};

}  // namespace nanhunt::engine
