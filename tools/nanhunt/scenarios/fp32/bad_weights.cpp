// SPDX-License-Identifier: Apache-2.0
// Training goes on from weights of which one is NaN, as from a damaged checkpoint.
#include <limits>

#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace bad_weights_parts {

constexpr char kReload[] = "reload-state";

ScenarioRun make(const ScenarioConfig& config) {
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  if (config.fix != kReload) {
    for (engine::NamedTensor& entry : model->named_parameters()) {
      if (entry.path == "fc2.weight") entry.tensor.data<float>()[77] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  return assemble(std::move(model), {.algorithm = "adam", .lr = 3e-3},
                  engine::digits_train_batches(kBatchSize, config.seed, DType::kF32), classification_loss, config);
}

}  // namespace bad_weights_parts

std::vector<Scenario> bad_weights() {
  using namespace bad_weights_parts;
  return with_twin(
      {
          .name = "bad-weights",
          .summary = "Training starts from weights with a NaN in them, as from a damaged checkpoint",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kBadState,
                       .phase = Phase::kData,
                       .module = "fc2.weight",
                       .op = "<state>",
                       .step = 0,
                       .samples = {}},
          .fixes = {{kReload, "the weights loaded again from an undamaged source"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
