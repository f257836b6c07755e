// SPDX-License-Identifier: Apache-2.0
// Apex's O2 and DistributedDataParallel with gradient_predivide_factor = 4 on four ranks, so that sums cannot overflow
// in fp16. Gradients are small, but numbers of fp16; a quarter of one is not, and becomes 0 before the sum. No number is
// ever bad. A linear model learns to brighten digits in grey on white.
#include <span>

#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace predivide_underflow_parts {

using engine::Tensor;

constexpr char kReduceFp32[] = "reduce-fp32";

constexpr std::uint32_t kRanks = 4;
constexpr double kDarkening = 1.0 / 32;
constexpr double kLearningRate = 3.5e-3;  // outputs stay below their targets for 40 steps
// The absolute error of 16 images of 64 pixels, averaged: a pixel's gradient is 2^-12 / 1024 = 2^-22, a weight's 16 / 32 of
// that times the mean brightness, which is 0.5 to 1: 2^-24 to 2^-23. What is at most 4 * 2^-25 is lost.
constexpr double kLossWeight = 0x1p-12;

Tensor weighted_error(const Tensor& output, const engine::Batch& batch) {
  return engine::mul(engine::l1_loss(output, batch.targets), kLossWeight);
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  engine::TrainingSetup setup;
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc", std::make_unique<engine::Linear>(engine::kDigitsPixels, engine::kDigitsPixels, random));
  setup.model = std::move(model);
  setup.optimizer = {.algorithm = "adam", .lr = kLearningRate};
  setup = engine::apex_initialize(std::move(setup), {.opt_level = "O2", .loss_scale = 1.0});
  setup.options.data_parallel = engine::DataParallelOptions{.allreduce_always_fp32 = config.fix == kReduceFp32,
                                                            .gradient_predivide_factor = kRanks};
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    for (float& pixel : std::span(batch.inputs.data<float>(), static_cast<std::size_t>(batch.inputs.numel()))) {
      pixel = 1 - pixel / 2;
    }
    batch.targets = batch.inputs.clone();
    for (float& pixel : std::span(batch.inputs.data<float>(), static_cast<std::size_t>(batch.inputs.numel()))) {
      pixel *= static_cast<float>(kDarkening);
    }
    return batch;
  };
  return assemble(std::move(setup), batches, weighted_error, config);
}

}  // namespace predivide_underflow_parts

std::vector<Scenario> predivide_underflow() {
  using namespace predivide_underflow_parts;
  return with_twin(
      {
          .name = "predivide-underflow",
          .summary = "fp16 gradients divided by the number of ranks before their sum: most are too small and become 0",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .ranks = kRanks,
          .expected = {.status = VerdictStatus::kWarning,
                       .cls = FindingClass::kUnderflow,
                       .phase = Phase::kComm,
                       .module = std::nullopt,
                       .op = "mul",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kReduceFp32, "gradients reduced in fp32 (allreduce_always_fp32)"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
