// SPDX-License-Identifier: Apache-2.0
// Apex's O2 with a static loss scale: fp16 weights with fp32 masters, and a scale of 2^20 on a loss that is summed over
// the batch. Gradients pass 65504 in the first step, and a static scale holds no step back: the weights become NaN.
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace static_scale_too_high_parts {

using engine::Tensor;

constexpr char kLowerScale[] = "lower-scale";

// Before training each class has a probability near 0.1: the gradients of the logits are 0.1 or 0.9 times the scale,
// 1.6 or 14 times what fp16 holds. At 128 sums over the batch stay below 8192.
constexpr double kTooHigh = 0x1p20, kFits = 128;

Tensor summed_loss(const Tensor& logits, const engine::Batch& batch) {
  return engine::mul(classification_loss(logits, batch), static_cast<double>(logits.size(0)));
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  setup.optimizer = {.algorithm = "adam", .lr = 1e-2};
  setup = in_own_recipe(config, std::move(setup), [&](engine::TrainingSetup plain) {
    return engine::apex_initialize(std::move(plain),
                                   {.opt_level = "O2", .loss_scale = config.fix == kLowerScale ? kFits : kTooHigh});
  });
  return assemble(std::move(setup), engine::digits_train_batches(kBatchSize, config.seed, DType::kF32), summed_loss,
                  config);
}

}  // namespace static_scale_too_high_parts

std::vector<Scenario> static_scale_too_high() {
  using namespace static_scale_too_high_parts;
  return with_twin(
      {
          .name = "static-scale-too-high",
          .summary = "fp16 with masters and a static loss scale of 2^20: gradients overflow, and no step is held back",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kBackward,
                       .module = {},  // the model itself, which casts its outputs
                       .op = "_to_copy_backward",
                       .step = 0,
                       .samples = {}},
          .fixes = {{kLowerScale, "a static loss scale of 128"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
