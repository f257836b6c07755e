// SPDX-License-Identifier: Apache-2.0
// Apex's FP16_Optimizer with update_master_grads=False, and torch's clip on the model's gradients before
// update_master_grads: they still carry the loss scale, so the limit of 1 is really one of 1/1024, and training all but
// stands still. No number is ever bad. clip_master_grads clips what the optimizer uses.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace fp16_optimizer_clip_parts {

constexpr char kClipMasters[] = "clip-master-grads";
// Gradients of the digits' loss stay below 10, so scaled ones below 10240.
constexpr double kInitScale = 1024;

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  setup.optimizer = {.algorithm = "sgd", .lr = 0.5};
  setup.options.clip_norm = 1;
  setup.options.clip_before_unscale = config.fix != kClipMasters;
  setup = in_own_recipe(config, std::move(setup), [](engine::TrainingSetup plain) {
    return engine::apex_fp16_optimizer(
        std::move(plain), {.dynamic_loss_scale = engine::ApexLegacyScalerOptions{.init_scale = kInitScale}});
  });
  return assemble(std::move(setup), engine::digits_train_batches(kBatchSize, config.seed, DType::kF32),
                  classification_loss, config);
}

}  // namespace fp16_optimizer_clip_parts

std::vector<Scenario> fp16_optimizer_clip() {
  using namespace fp16_optimizer_clip_parts;
  return with_twin(
      {
          .name = "fp16-optimizer-clip",
          .summary = "FP16_Optimizer: the model's scaled gradients are clipped, not those of the masters",
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
          .fixes = {{kClipMasters, "optimizer.clip_master_grads after update_master_grads"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
