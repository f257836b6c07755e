// SPDX-License-Identifier: Apache-2.0
// A healthy run: fp16 autocast, the loss summed over the batch and scaled by 65536. The first scaled gradients pass
// 65504, the scaler skips those steps and halves its scale until they fit. Nothing is wrong. The causal mask's -Inf and
// the buffers of a BatchNorm are there to be misjudged.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace scaler_calibration_parts {

using engine::Tensor;

constexpr char kCalibrated[] = "calibrated-scale";

constexpr std::int64_t kRows = 8, kWidth = 8, kChannels = 4, kHeadSize = 16;

// Convolution and BatchNorm, then attention in which each row of the image sees those above it.
class CausalRows : public engine::Module {
 public:
  explicit CausalRows(engine::RandomStream& random)
      : conv_(register_module("conv", std::make_unique<engine::Conv2d>(
                                          1, kChannels, engine::Conv2dOptions{.kernel = 3, .padding = 1}, random))),
        norm_(register_module("norm", std::make_unique<engine::BatchNorm2d>(kChannels))),
        query_(register_module("query", make_projection(random))),
        key_(register_module("key", make_projection(random))),
        value_(register_module("value", make_projection(random))) {
    std::vector<double> hidden(kRows * kRows);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t other = row + 1; other < kRows; ++other) {
        hidden[static_cast<std::size_t>(row * kRows + other)] = 1;
      }
    }
    future_ = Tensor::from_values(hidden, {kRows, kRows}, DType::kBool);
  }

 protected:
  Tensor forward(const Tensor& images) override {
    const std::int64_t n = images.size(0);
    const Tensor maps = engine::relu(norm_(conv_(engine::reshape(images, {n, 1, kRows, kWidth}))));
    const Tensor rows = engine::reshape(engine::permute(maps, {0, 2, 1, 3}), {n * kRows, kChannels * kWidth});
    const auto tokens = [&](engine::Linear& layer) { return engine::reshape(layer(rows), {n, kRows, kHeadSize}); };
    engine::AttentionOptions options;
    future_ = future_.on(images.device());  // once
    options.mask = future_;
    return engine::mean(engine::scaled_dot_product_attention(tokens(query_), tokens(key_), tokens(value_), options), 1);
  }

 private:
  static std::unique_ptr<engine::Linear> make_projection(engine::RandomStream& random) {
    return std::make_unique<engine::Linear>(kChannels * kWidth, kHeadSize, random);
  }
  engine::Conv2d& conv_;
  engine::BatchNorm2d& norm_;
  engine::Linear &query_, &key_, &value_;
  Tensor future_;
};

Tensor summed_loss(const Tensor& logits, const engine::Batch& batch) {
  return engine::mul(engine::cross_entropy(logits, batch.targets), static_cast<double>(logits.size(0)));
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("rows", std::make_unique<CausalRows>(random));
  model->append("head", std::make_unique<engine::Linear>(kHeadSize, engine::kDigitsClasses, random));
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  engine::GradScalerOptions scaler;
  if (config.fix == kCalibrated) scaler.init_scale = 64;
  options.scaler = scaler;
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2},
                  engine::digits_train_batches(kBatchSize, config.seed, DType::kF32), summed_loss, config, options);
}

}  // namespace scaler_calibration_parts

std::vector<Scenario> scaler_calibration() {
  using namespace scaler_calibration_parts;
  return with_twin(
      {
          .name = "scaler-calibration",
          .summary = "Nothing is wrong: the loss scaler skips the first steps and halves its scale until gradients fit",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kCalibrating,
                       .cls = FindingClass::kScalerCalibration,
                       .phase = Phase::kBackward,
                       .module = "head",
                       .op = "addmm_backward",
                       .step = 0,
                       .samples = {}},
          .fixes = {{kCalibrated, "an initial scale of 64, which this loss can bear"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
