// SPDX-License-Identifier: Apache-2.0
// Memory of a step by kind: counted, not estimated.
#include "nanhunt/engine/memory_use.h"

#include <gtest/gtest.h>

#include "nanhunt/engine/hooks.h"
#include "src/engine/memory.h"
#include "tests/engine/precision/planted.h"

namespace nanhunt::engine::testing {
namespace {

// One product of 4 rows: input (4, 3), weight (2, 3), output (4, 2), loss: the mean of it.
std::unique_ptr<Trainer> tiny_trainer(const OptimizerOptions& optimizer) {
  RandomStream random(1, 0);
  auto model = std::make_unique<Sequential>();
  model->append("fc", std::make_unique<Linear>(3, 2, random, DType::kF32, /*with_bias=*/false));
  auto parameters = model->named_parameters();
  const BatchSource batches = [](std::uint32_t) {
    Batch batch;
    batch.inputs = Tensor::full({4, 3}, 0.5, DType::kF32);
    return batch;
  };
  const LossFunction loss = [](const Tensor& output, const Batch&) { return mean(output); };
  return std::make_unique<Trainer>(std::move(model), make_optimizer(std::move(parameters), optimizer), batches, loss);
}

std::uint64_t largest(const StepMemory& memory, MemoryKind kind) {
  return memory.largest[static_cast<std::size_t>(kind)];
}

TEST(StepMemory, is_what_the_tensors_of_the_step_hold) {
  const auto trainer = tiny_trainer({.algorithm = "adam"});
  trainer->step();
  const StepMemory memory = measure_step_memory(*trainer);
  EXPECT_EQ(largest(memory, MemoryKind::kParameters), 24U);
  EXPECT_EQ(largest(memory, MemoryKind::kGradients), 24U);
  EXPECT_EQ(largest(memory, MemoryKind::kOptimizerState), 48U);
  EXPECT_EQ(largest(memory, MemoryKind::kBatch), 48U);
  EXPECT_EQ(largest(memory, MemoryKind::kMasters), 0U);
  // output 32, loss 4; backward makes the output's gradient of the loss's
  EXPECT_GE(largest(memory, MemoryKind::kActivations), 36U);
  EXPECT_LE(largest(memory, MemoryKind::kActivations), 36U + 4 + 32 + 24);
  EXPECT_GT(memory.peak, 24U + 48 + 48);
}

TEST(StepMemory, counts_state_that_begins_in_the_step) {
  const StepMemory memory = measure_step_memory(*tiny_trainer({.algorithm = "adam"}));
  EXPECT_EQ(largest(memory, MemoryKind::kOptimizerState), 48U);
}

TEST(StepMemory, is_the_same_at_every_step_and_leaves_no_bit_changed) {
  const auto measured = tiny_trainer({.algorithm = "sgd", .momentum = 0.9}),
             plain = tiny_trainer({.algorithm = "sgd", .momentum = 0.9});
  measured->step();
  const StepMemory second = measure_step_memory(*measured), third = measure_step_memory(*measured);
  EXPECT_EQ(second.peak, third.peak);
  EXPECT_EQ(second.at_peak, third.at_peak);
  for (int i = 0; i < 3; ++i) plain->step();
  EXPECT_EQ(measured->model().named_parameters()[0].tensor.to_vector(),
            plain->model().named_parameters()[0].tensor.to_vector());
}

TEST(StepMemory, tells_scratch_of_one_operation_apart) {
  TrainingParts parts = find_workload("cnn")->make(1, 8);
  parts.setup.options.validation.reset();
  const auto trainer = make_trainer(std::move(parts));
  trainer->step();
  EXPECT_GT(measure_step_memory(*trainer).scratch, 0U) << "columns of a convolution";
  EXPECT_EQ(scratch_use().now, 0U);
}

TEST(Storage, tells_observers_of_its_beginning_and_its_end) {
  struct Log : Observer {
    void on_storage_allocated(std::uint64_t generation, std::size_t size) noexcept override {
      begun = generation;
      bytes = size;
    }
    void on_storage_released(std::uint64_t generation) noexcept override { ended = generation; }
    std::uint64_t begun = 0, ended = 0;
    std::size_t bytes = 0;
  } log;
  const HookHandle handle = add_observer(log);
  std::uint64_t generation = 0;
  {
    const Tensor tensor = Tensor::zeros({5}, DType::kF16);
    generation = tensor.storage()->generation();
  }
  EXPECT_EQ(log.begun, generation);
  EXPECT_EQ(log.bytes, 10U);
  EXPECT_EQ(log.ended, generation);
}

}  // namespace
}  // namespace nanhunt::engine::testing
