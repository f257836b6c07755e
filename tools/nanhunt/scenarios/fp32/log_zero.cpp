// SPDX-License-Identifier: Apache-2.0
// Cross entropy written by hand: the probability of a wrong class rounds to 0, its logarithm is -Inf, and -Inf
// times a target of 0 is NaN. The multiplication, where the first NaN appears, is not at fault.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace log_zero_parts {

using engine::Tensor;

constexpr char kLogSoftmax[] = "log-softmax";
constexpr char kClamp[] = "clamp-input";

// One image is stored as 0..255 among normalised ones. exp() of a difference of logits is 0 in fp32 from 104 on:
// over twelve seeds the largest difference stays below 16 for normal images and is above 700 for that one.
constexpr std::uint32_t kBadStep = 18;
constexpr double kIntensity = 255;

// targets: one-hot rows.
Tensor handwritten_cross_entropy(const Tensor& logits, const engine::Batch& batch, const std::string& fix) {
  Tensor log_probs;
  if (fix == kLogSoftmax) {
    log_probs = engine::log_softmax(logits, 1);
  } else {
    const Tensor probs = engine::softmax(logits, 1);
    log_probs = engine::log(fix == kClamp ? engine::clamp(probs, 1e-30, 1) : probs);
  }
  return engine::neg(engine::mean(engine::sum(engine::mul(batch.targets, log_probs), 1)));
}

Tensor one_hot(const Tensor& labels) {
  std::vector<double> rows(static_cast<std::size_t>(labels.numel() * engine::kDigitsClasses));
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    rows[static_cast<std::size_t>(i * engine::kDigitsClasses + static_cast<std::int64_t>(labels.at(i)))] = 1;
  }
  return Tensor::from_values(rows, {labels.numel(), engine::kDigitsClasses}, DType::kF32);
}

ScenarioRun make(const ScenarioConfig& config) {
  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t odd_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, odd_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    scale_sample(batch, odd_id, kIntensity);
    batch.targets = one_hot(batch.targets);
    return batch;
  };
  auto loss = [fix = config.fix](const Tensor& output, const engine::Batch& batch) {
    return handwritten_cross_entropy(output, batch, fix);
  };
  return assemble(std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed}),
                  {.algorithm = "adam", .lr = 1e-2}, batches, loss, config);
}

}  // namespace log_zero_parts

std::vector<Scenario> log_zero() {
  using namespace log_zero_parts;
  return with_twin(
      {
          .name = "log-zero",
          .summary = "A hand-written cross entropy takes the logarithm of a probability that rounded to 0",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kDivideByZero,
                       .phase = Phase::kLoss,
                       .module = "<loss>",
                       .op = "log",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kLogSoftmax, "a fused log-softmax instead of the logarithm of a softmax"},
                    {kClamp, "probabilities clamped to at least 1e-30 before the logarithm"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
