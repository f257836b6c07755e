// SPDX-License-Identifier: Apache-2.0
// Apex's O2 with master_weights=False: fp16 weights are stepped themselves. SGD with a learning rate of 1e-3 moves a
// weight by far less than the distance to its neighbours in fp16 (6e-5 from 0.0625 on), so nearly every sum rounds
// back to the weight that it started from. No number is ever bad.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace o2_no_masters_parts {

constexpr char kMasters[] = "fp32-masters";
constexpr double kLearningRate = 1e-3;
constexpr std::uint32_t kFineTuningSteps = 200;

ScenarioRun make(const ScenarioConfig& config) {
  engine::OptimizerOptions sgd{.algorithm = "sgd", .lr = kLearningRate};
  if (config.fix == kMasters) sgd.fp32_masters = true;
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = DType::kF16, .seed = config.seed});
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    return engine::make_digits_batch(order.ids(step), DType::kF16);
  };
  engine::TrainerOptions options;
  options.scaler = engine::ApexScalerOptions{.init_scale = 1024};
  return assemble(std::move(model), sgd, batches, classification_loss, config, options);
}

}  // namespace o2_no_masters_parts

std::vector<Scenario> o2_no_masters() {
  using namespace o2_no_masters_parts;
  return with_twin(
      {
          .name = "o2-no-masters",
          .summary = "fp16 weights under a loss scaler and no fp32 masters: weight plus update rounds back to the weight",
          .steps = kFineTuningSteps,
          .level = "ops",
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
