// SPDX-License-Identifier: Apache-2.0
// From some step on the loader forgets to normalise images, and a layer's activations pass 65504 in fp16 whatever the
// loss scale is. The scaler takes the NaN for gradients that are too large: it skips and halves for ever.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace scale_collapse_parts {

constexpr char kFp32Layer[] = "fp32-layer";

constexpr std::uint32_t kBadStep = 6;
// 12-bit intensities. Over twelve seeds, before training: every image then makes the layer pass 65504 by a factor of 10
// at least, and normal ones stay below 620.
constexpr double kIntensity = 4095;

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc1", make_large_projection(engine::kDigitsPixels, 64, random, config.fix == kFp32Layer));
  model->append("norm", make_fp32_rms_norm(DType::kF32));
  model->append("fc2", std::make_unique<engine::Linear>(64, engine::kDigitsClasses, random));

  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    const std::vector<std::int64_t> ids = order.ids(step);
    engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
    if (step >= kBadStep) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    }
    return batch;
  };
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 1024};
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2}, batches, classification_loss, config, options);
}

}  // namespace scale_collapse_parts

std::vector<Scenario> scale_collapse() {
  using namespace scale_collapse_parts;
  return with_twin(
      {
          .name = "scale-collapse",
          .summary = "Activations overflow in forward at any loss scale: the scaler skips and halves for ever",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kScalerCollapse,
                       .phase = Phase::kForward,
                       .module = "fc1",
                       .op = "mm",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kFp32Layer, "the overflowing layer outside autocast, in fp32"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
