// SPDX-License-Identifier: Apache-2.0
// fp16 autocast without loss scaling: an auxiliary loss with a small weight, averaged over all pixels of the batch.
// Most gradients are smaller than fp16 can hold and are stored as 0; what is left is noise. No number is ever bad.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace grad_underflow_parts {

using engine::Tensor;

constexpr char kStaticScale[] = "static-scale-512";

constexpr double kLossWeight = 1e-4;

Tensor weighted_reconstruction_loss(const Tensor& output, const engine::Batch& batch) {
  const Tensor error = engine::sub(output, batch.targets);
  return engine::mul(engine::mean(engine::mul(error, error)), kLossWeight);
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("encoder", std::make_unique<engine::Linear>(engine::kDigitsPixels, 32, random));
  model->append("act", std::make_unique<engine::Tanh>());
  model->append("decoder", std::make_unique<engine::Linear>(32, engine::kDigitsPixels, random));
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    batch.targets = batch.inputs;
    return batch;
  };
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  if (config.fix == kStaticScale) options.scaler = engine::GradScalerOptions{.init_scale = 512, .dynamic = false};
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2}, batches,
                  weighted_reconstruction_loss, config, options);
}

}  // namespace grad_underflow_parts

std::vector<Scenario> grad_underflow() {
  using namespace grad_underflow_parts;
  return with_twin(
      {
          .name = "grad-underflow",
          .summary = "fp16 autocast without loss scaling: most gradients are too small to be stored and become 0",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kWarning,
                       .cls = FindingClass::kUnderflow,
                       .phase = Phase::kBackward,
                       .module = "<loss>",
                       .op = "sub_backward",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kStaticScale, "a static loss scale of 512"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
