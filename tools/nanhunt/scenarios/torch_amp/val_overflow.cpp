// SPDX-License-Identifier: Apache-2.0
// Training under fp16 autocast is healthy. One image of the validation set was never normalised: it has 12-bit
// intensities, and in the validation, under autocast too, a product passes 65504; the norm behind it makes NaN of that.
// The loss of training, gradients and weights know nothing of it.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace val_overflow_parts {

constexpr char kFp32[] = "fp32-validation";
constexpr char kBf16[] = "bf16-validation";

constexpr std::uint32_t kEvery = 10;  // steps from one validation to the next
// Over twelve seeds the product stays below 420 for normal images and reaches 2.6e5 to 5.4e5 for the odd one, a factor of
// 3.9 past 65504; machines differ by less than a percent.
constexpr double kIntensity = 4095;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kValidated = 50;  // images

engine::ValidationOptions validation(const ScenarioConfig& config, std::int64_t odd_id) {
  engine::ValidationOptions options;
  options.every = kEvery;
  if (config.fix != kFp32) {
    options.autocast = engine::AutocastOptions{.dtype = config.fix == kBf16 ? DType::kBF16 : DType::kF16};
  }
  options.batches = [odd_id](std::uint32_t) {
    engine::Batch batch = engine::make_digits_batch(engine::digits_test_ids().first(kValidated), DType::kF32);
    scale_sample(batch, odd_id, kIntensity);
    return batch;
  };
  return options;
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc1", std::make_unique<engine::Linear>(engine::kDigitsPixels, kWidth, random));
  model->append("relu1", std::make_unique<engine::Relu>());
  model->append("project", make_large_projection(kWidth, kWidth, random, /*in_fp32=*/false));
  model->append("norm", make_fp32_rms_norm(DType::kF32));
  model->append("fc2", std::make_unique<engine::Linear>(kWidth, engine::kDigitsClasses, random));
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 1024};
  options.validation = validation(config, engine::digits_test_ids()[kValidated / 2]);
  return assemble(std::move(model), {.algorithm = "sgd", .lr = 0.05, .momentum = 0.9},
                  engine::digits_train_batches(kBatchSize, config.seed, DType::kF32), classification_loss, config, options);
}

}  // namespace val_overflow_parts

std::vector<Scenario> val_overflow() {
  using namespace val_overflow_parts;
  return with_twin(
      {
          .name = "val-overflow",
          .summary = "Training is healthy; in the validation, under fp16 autocast, one image that was not normalised overflows",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kValidation,
                       .module = "project",
                       .op = "mm",
                       .step = kEvery - 1,
                       .samples = {engine::digits_test_ids()[kValidated / 2]},
                       .sinks_stay_finite = true},
          .fixes = {{kFp32, "validation outside autocast, in fp32"}, {kBf16, "validation under bf16 autocast"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
