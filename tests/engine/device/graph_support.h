// SPDX-License-Identifier: Apache-2.0
// Runs whose steps are compared: op by op, and as graphs.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/trainer.h"
#include "tests/engine/device/device_support.h"

namespace nanhunt::engine::testing {

enum class Steps : std::uint8_t { kPlain, kGraphs };

struct Training {
  std::function<std::unique_ptr<Module>()> model;
  BatchSource batches;
  LossFunction loss;
  OptimizerOptions optimizer = {.algorithm = "adam", .lr = 1e-2, .impl = OptimizerImpl::kFused};
  TrainerOptions options = {};
};

inline BatchSource moved(BatchSource batches, const Device& device) {
  return [batches = std::move(batches), device](std::uint32_t step) {
    Batch batch = batches(step);
    batch.inputs = batch.inputs.on(device);
    batch.targets = batch.targets.on(device);
    return batch;
  };
}

inline Tensor of_classes(const Tensor& output, const Batch& batch) { return cross_entropy(output, batch.targets); }

inline Training perceptron(DType dtype = DType::kF32) {
  return {.model = [dtype] { return std::make_unique<Mlp>(MlpOptions{.sizes = {64, 24, 10}, .dtype = dtype}); },
          .batches = digits_train_batches(8, 3, dtype),
          .loss = of_classes};
}

// Dropout, embeddings whose rows differ from step to step, attention.
inline Training transformer() {
  return {.model =
              [] {
                GptOptions options{.layers = 1, .block = {}};
                options.block.dims = 16;
                options.block.heads = 2;
                options.block.context = 15;  // positions that are no multiple of four
                options.block.dropout = 0.1;
                return std::make_unique<Gpt>(options);
              },
          .batches = text_train_batches(3, 15, 1),
          .loss = next_token_loss};
}

inline Training convolutions() {
  return {.model = [] { return std::make_unique<Cnn>(CnnOptions{.channels = 4}); },
          .batches = digits_train_batches(8, 1, DType::kF32),
          .loss = of_classes};
}

inline std::unique_ptr<Trainer> make(const Training& run, Steps steps, const Device& device = kEmulated) {
  auto model = run.model();
  model->to(device);
  auto optimizer = make_optimizer(model->named_parameters(), run.optimizer);
  auto trainer = std::make_unique<Trainer>(std::move(model), std::move(optimizer), moved(run.batches, device),
                                           run.loss, run.options);
  trainer->use_graphs(steps == Steps::kGraphs);
  return trainer;
}

inline void append(std::vector<double>& out, const Tensor& tensor) {
  if (!tensor.defined()) return out.push_back(-12345);
  for (const double value : values_of(tensor)) out.push_back(std::isnan(value) ? 12345.678 : value);
}

// All that a step leaves, after each of them.
class Ledger {
 public:
  explicit Ledger(Trainer& trainer) : trainer_(trainer) {
    trainer.set_door_callback([this](Trainer& at_door) {
      for (const NamedTensor& entry : at_door.optimizer().parameters()) append(lines_.back(), entry.tensor.grad());
    });
  }
  void step() {
    lines_.emplace_back();
    const StepResult result = trainer_.step();
    std::vector<double>& line = lines_.back();
    const double loss = std::isnan(result.loss) ? 12345.678 : result.loss;
    line.insert(line.end(), {loss, result.scale, result.skipped ? 1.0 : 0.0});
    for (const auto& list : {trainer_.model().named_parameters(), trainer_.model().named_buffers(),
                             trainer_.optimizer().named_state()}) {
      for (const NamedTensor& entry : list) {
        append(line, entry.tensor);
        line.push_back(entry.tensor.version());
      }
    }
    for (const std::int64_t count : trainer_.optimizer().step_counts()) line.push_back(static_cast<double>(count));
    for (const RandomStream* stream : trainer_.model().random_streams()) {
      line.push_back(static_cast<double>(stream->position()));
    }
    if (trainer_.scaler() != nullptr) line.push_back(static_cast<double>(trainer_.scaler()->growth_tracker()));
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }
  const std::vector<std::vector<double>>& lines() const { return lines_; }
  int skipped() const {
    return static_cast<int>(std::count_if(lines_.begin(), lines_.end(), [this](const auto& line) {
      return line[gradients_of(line) + 2] != 0;
    }));
  }

 private:
  std::size_t gradients_of(const std::vector<double>&) const {
    std::size_t count = 0;
    for (const NamedTensor& entry : trainer_.optimizer().parameters()) {
      count += static_cast<std::size_t>(entry.tensor.numel());
    }
    return count;
  }
  Trainer& trainer_;
  std::vector<std::vector<double>> lines_;
};

inline std::vector<std::vector<double>> lines_of(const Training& run, Steps steps, int count, GraphUse* use = nullptr,
                                          const Device& device = kEmulated) {
  const std::unique_ptr<Trainer> trainer = make(run, steps, device);
  Ledger ledger(*trainer);
  ledger.steps(count);
  if (use != nullptr) *use = trainer->graph_use();
  return ledger.lines();
}

// Steps op by op for a reason of which that is a part.
inline std::uint64_t steps_op_by_op(const GraphUse& use, const std::string& part) {
  std::uint64_t out = 0;
  for (const auto& [why, steps] : use.op_by_op) out += why.find(part) != std::string::npos ? steps : 0;
  return out;
}

inline TrainerOptions mixed(double scale) {
  return {.autocast = AutocastOptions{}, .scaler = GradScalerOptions{.init_scale = scale, .growth_interval = 3}};
}

class WantsOps : public Observer {
 public:
  void on_op(const OpCall&) noexcept override { ++ops; }
  int ops = 0;
};

}  // namespace nanhunt::engine::testing
