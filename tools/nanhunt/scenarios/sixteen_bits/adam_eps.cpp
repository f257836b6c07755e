// SPDX-License-Identifier: Apache-2.0
// Adam with parameters, gradients and state all in fp16 (known in the field as "NaN after the first update").
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace adam_eps_parts {

constexpr char kMasters[] = "fp32-masters";
constexpr char kRaisedEps[] = "eps-1e-4";
constexpr char kFused[] = "fused-optimizer";

// With eps 1e-4 in pure fp16 a step is up to 54 times too long; at this rate it still stays finite.
constexpr double kLearningRate = 3e-3;

ScenarioRun train_in_fp16(const ScenarioConfig& config, double eps) {
  const DType dtype = own_format(config, DType::kF16);
  engine::OptimizerOptions adam{.algorithm = "adam", .lr = kLearningRate, .eps = eps};
  if (config.fix == kMasters) adam.fp32_masters = true;
  if (config.fix == kRaisedEps) adam.eps = 1e-4;
  if (config.fix == kFused) adam.impl = engine::OptimizerImpl::kFused;
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.dtype = dtype, .seed = config.seed});
  return assemble(std::move(model), adam, engine::digits_train_batches(kBatchSize, config.seed, dtype),
                  classification_loss, config);
}

}  // namespace adam_eps_parts

std::vector<Scenario> adam_eps() {
  using namespace adam_eps_parts;
  // Pixels at the rim are 0 in every image, so their weights have gradient 0 whatever the rounding of the matrix
  // products: m = v = 0, eps rounds to 0, and the very first update divides 0 by 0.
  Scenario plain{
      .name = "adam-eps",
      .summary = "Pure fp16 Adam: eps 1e-8 is 0 in fp16 and the first update divides 0 by 0",
      .steps = kSteps,
      .dtypes = {"fp16"},
      .expected = {.status = VerdictStatus::kFault,
                   .cls = FindingClass::kEpsUnderflow,
                   .phase = Phase::kOptimizer,
                   .module = "fc1.weight",
                   .op = "addcdiv_",
                   .step = 0,
                   .samples = {}},
      .fixes = {{kMasters, "fp32 master weights and optimizer state"},
                {kRaisedEps, "eps raised to 1e-4, the first power of ten that is normal in fp16"},
                {kFused, "fused Adam, which adds eps in fp32 (the state stays fp16)"}},
      .make = [](const ScenarioConfig& config) { return train_in_fp16(config, 1e-8); },
  };
  // (1 - beta2) * g * g is 0 in fp16 for |g| <= 5.46e-3, which is nearly every gradient of the first layer.
  Scenario raised{
      .name = "adam-eps-raised",
      .summary = "Pure fp16 Adam with eps 1e-4: no NaN, but the second moment is lost and steps are far too long",
      .steps = kSteps,
      .dtypes = {"fp16"},
      .expected = {.status = VerdictStatus::kWarning,
                   .cls = FindingClass::kUnderflow,
                   .phase = Phase::kOptimizer,
                   .module = "fc1.weight",
                   .op = "addcmul_",
                   .step = 0,
                   .samples = {}},
      .fixes = {{kMasters, "fp32 master weights and optimizer state"}},
      .make = [](const ScenarioConfig& config) { return train_in_fp16(config, 1e-4); },
  };
  std::vector<Scenario> out = with_twin(std::move(plain), {"fp16", "fp32"});
  for (Scenario& scenario : with_twin(std::move(raised), {"fp16", "fp32"})) out.push_back(std::move(scenario));
  return out;
}

}  // namespace nanhunt::scenarios
