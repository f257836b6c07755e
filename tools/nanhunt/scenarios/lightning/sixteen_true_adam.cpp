// SPDX-License-Identifier: Apache-2.0
// Lightning's "16-true" with Adam as it comes: weights, gradients and both moments are in fp16, where eps 1e-8 is 0.
// Pixels at the rim are 0 in every image, so their weights have gradient 0: the very first update divides 0 by 0.
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace sixteen_true_adam_parts {

constexpr char kMixed[] = "16-mixed";

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  setup.optimizer = {.algorithm = "adam", .lr = 1e-2};
  setup = in_own_recipe(config, std::move(setup), [&](engine::TrainingSetup plain) {
    return engine::lightning_trainer(std::move(plain), {.precision = config.fix == kMixed ? "16-mixed" : "16-true"});
  });
  return assemble(std::move(setup), engine::digits_train_batches(kBatchSize, config.seed, DType::kF32),
                  classification_loss, config);
}

}  // namespace sixteen_true_adam_parts

std::vector<Scenario> sixteen_true_adam() {
  using namespace sixteen_true_adam_parts;
  return with_twin(
      {
          .name = "sixteen-true-adam",
          .summary = "Lightning's 16-true with Adam: eps 1e-8 is 0 in fp16 and the first update divides 0 by 0",
          .steps = kSteps,
          .dtypes = {"fp16"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kEpsUnderflow,
                       .phase = Phase::kOptimizer,
                       .module = "fc1.weight",
                       .op = "addcdiv_",
                       .step = 0,
                       .samples = {}},
          .fixes = {{kMixed, "precision 16-mixed: fp32 weights and optimizer state, fp16 in autocast alone"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
