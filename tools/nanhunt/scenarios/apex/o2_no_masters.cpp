// SPDX-License-Identifier: Apache-2.0
// Apex's O2 with master_weights=False: fp16 weights are stepped themselves. On images of 8 bits SGD needs a learning rate
// of 3e-6; it moves most weights by less than half the distance to their neighbours in fp16 (6e-5 from 0.0625 on), so
// most sums round back to the weight that they started from. No number is ever bad.
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace o2_no_masters_parts {

constexpr char kMasters[] = "fp32-masters";
constexpr double kLearningRate = 3e-6;
constexpr double kIntensity = 256;  // of the brightest pixel
constexpr double kMaxScale = 16;     // scaled gradients stay far below 65504
constexpr std::uint32_t kFineTuningSteps = 400;

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  setup.optimizer = {.algorithm = "sgd", .lr = kLearningRate};
  setup = in_own_recipe(config, std::move(setup), [&](engine::TrainingSetup plain) {
    return engine::apex_initialize(std::move(plain), {.opt_level = "O2",
                                                      .master_weights = config.fix == kMasters,
                                                      .max_loss_scale = kMaxScale});
  });
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    const std::vector<std::int64_t> ids = order.ids(step);
    engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
    for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    return batch;
  };
  return assemble(std::move(setup), batches, classification_loss, config);
}

}  // namespace o2_no_masters_parts

std::vector<Scenario> o2_no_masters() {
  using namespace o2_no_masters_parts;
  return with_twin(
      {
          .name = "o2-no-masters",
          .summary = "fp16 weights under a loss scaler and no fp32 masters: weight plus update rounds back to the weight",
          .steps = kFineTuningSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kUpdateLoss,
                       .phase = Phase::kOptimizer,
                       .module = "fc1.weight",
                       .op = "add_",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kMasters, "fp32 master weights"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
