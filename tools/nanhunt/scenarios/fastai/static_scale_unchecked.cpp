// SPDX-License-Identifier: Apache-2.0
// fastai's to_fp16 as first published: a static scale of 512, and nobody looks whether gradients overflow. One batch
// of images that were not normalised, under a loss that is summed, makes gradients of which 512 is too many times. The
// optimizer uses them, and the weights are NaN from then on.
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace static_scale_unchecked_parts {

using engine::Tensor;

constexpr char kDynamic[] = "dynamic-scale";
constexpr std::uint32_t kBadStep = 6;
constexpr double kIntensity = 255;   // 8-bit images
constexpr double kSmallScale = 4;    // far from an overflow, and above 1: fastai looks
constexpr double kClip = 10;         // else Adam would remember the odd batch for a thousand steps

Tensor summed_loss(const Tensor& logits, const engine::Batch& batch) {
  return engine::mul(classification_loss(logits, batch), static_cast<double>(logits.size(0)));
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed});
  setup.optimizer = {.algorithm = "adam", .lr = 1e-2};
  engine::FastaiOptions options{.dynamic = false, .clip = kClip};
  if (config.fix == kDynamic) options = {.loss_scale = kSmallScale, .clip = kClip};
  setup = in_own_recipe(config, std::move(setup), [&](engine::TrainingSetup plain) {
    return engine::fastai_to_fp16(std::move(plain), options);
  });
  if (config.bare()) setup.options.clip_norm = kClip;
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    const std::vector<std::int64_t> ids = order.ids(step);
    engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
    if (step == kBadStep) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    }
    return batch;
  };
  return assemble(std::move(setup), batches, summed_loss, config);
}

}  // namespace static_scale_unchecked_parts

std::vector<Scenario> static_scale_unchecked() {
  using namespace static_scale_unchecked_parts;
  return with_twin(
      {
          .name = "static-scale-unchecked",
          .summary = "fastai's static scale of 512: one batch makes gradients overflow, nobody looks, and they are used",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kBackward,
                       .module = "fc3",
                       .op = "addmm_backward",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kDynamic, "a dynamic loss scale that starts at 4"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
