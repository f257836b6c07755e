// SPDX-License-Identifier: Apache-2.0
// DeepSpeed's dynamic loss scale on data of which every third batch comes from a shard that was not normalised: there a
// layer's activations pass 65504 at any scale. Hysteresis takes the first overflow; it is filled up again by growth
// alone, so each later one halves the scale, until it is at its smallest and DeepSpeed ends training.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace hysteresis_collapse_parts {

constexpr char kFp32Layer[] = "fp32-layer";

constexpr std::uint32_t kBadStep = 5, kBadEvery = 3;
// 1 overflow for hysteresis, 4 halvings, and the one that ends training.
constexpr double kInitScale = 16;
constexpr std::uint32_t kLastStep = kBadStep + 5 * kBadEvery;
// 12-bit intensities: bad images pass 65504 by a factor of 10 at least, normal ones stay below 620 (as in
// scale-collapse).
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
    if (step >= kBadStep && (step - kBadStep) % kBadEvery == 0) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    }
    return batch;
  };
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::DeepSpeedScalerOptions{.init_scale = kInitScale};
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2}, batches, classification_loss, config, options);
}

}  // namespace hysteresis_collapse_parts

std::vector<Scenario> hysteresis_collapse() {
  using namespace hysteresis_collapse_parts;
  std::vector<Scenario> both = with_twin(
      {
          .name = "hysteresis-collapse",
          .summary = "Every third batch overflows in forward: hysteresis is spent once, and the scale only falls",
          .steps = kLastStep + 1,
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
  both[1].steps = kSteps;  // nothing ends its training
  return both;
}

}  // namespace nanhunt::scenarios
