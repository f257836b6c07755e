// SPDX-License-Identifier: Apache-2.0
// Fine-tuning in pure bf16 with a small learning rate. Adam moves each weight by about the learning rate, 3e-5; bf16
// numbers from 2^-7 on are 6.1e-5 apart or more, so nearly every sum rounds back to the weight that it started from. No
// number is ever bad: the loss just stands still.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace lost_updates_parts {

constexpr char kMasters[] = "fp32-masters";
constexpr double kLearningRate = 3e-5;
constexpr double kIntensities = 16;  // pixels as they are stored: whole numbers up to 16
constexpr std::uint32_t kFineTuningSteps = 500;

ScenarioRun make(const ScenarioConfig& config) {
  const DType dtype = own_format(config, DType::kBF16);
  engine::OptimizerOptions adam{.algorithm = "adam", .lr = kLearningRate};
  if (config.fix == kMasters) adam.fp32_masters = true;
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = dtype, .seed = config.seed});
  auto batches = [order = training_order(config.seed), dtype](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), dtype);
    std::vector<double> pixels = batch.inputs.to_vector();
    for (double& pixel : pixels) pixel *= kIntensities;
    batch.inputs = engine::Tensor::from_values(pixels, batch.inputs.sizes(), dtype);
    return batch;
  };
  return assemble(std::move(model), adam, batches, classification_loss, config);
}

}  // namespace lost_updates_parts

std::vector<Scenario> lost_updates() {
  using namespace lost_updates_parts;
  return with_twin(
      {
          .name = "lost-updates",
          .summary = "Pure bf16 with a small learning rate: weight plus update rounds back to the weight",
          .steps = kFineTuningSteps,
          .dtypes = {"bf16"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kUpdateLoss,
                       .phase = Phase::kOptimizer,
                       .module = "fc1.weight",
                       .op = "addcdiv_",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kMasters, "fp32 master weights and optimizer state"}},
          .make = make,
      },
      {"bf16", "fp32"});
}

}  // namespace nanhunt::scenarios
