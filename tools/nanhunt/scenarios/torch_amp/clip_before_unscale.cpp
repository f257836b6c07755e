// SPDX-License-Identifier: Apache-2.0
// Gradients are clipped while they still carry the loss scale: the norm limit of 1 is really a limit of 1/65536, and
// training all but stands still. No number is ever bad.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace clip_before_unscale_parts {

constexpr char kUnscaleFirst[] = "unscale-first";

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 8192};
  options.clip_norm = 1;
  options.clip_before_unscale = config.fix != kUnscaleFirst;
  return assemble(std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed}),
                  {.algorithm = "sgd", .lr = 0.5}, engine::digits_train_batches(kBatchSize, config.seed, DType::kF32),
                  classification_loss, config, options);
}

}  // namespace clip_before_unscale_parts

std::vector<Scenario> clip_before_unscale() {
  using namespace clip_before_unscale_parts;
  return with_twin(
      {
          .name = "clip-before-unscale",
          .summary = "Gradients are clipped while they still carry the loss scale: training stands still",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kApiMisuse,
                       .phase = Phase::kClip,
                       .module = {},
                       .op = "clip_grad_norm_",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kUnscaleFirst, "scaler.unscale_(optimizer) before clipping"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
