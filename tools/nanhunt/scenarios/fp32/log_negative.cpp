// SPDX-License-Identifier: Apache-2.0
// A hand-written squared log error of the digit's value. One label says "unknown" as -99, and log(1 - 99) is NaN.
#include <algorithm>

#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace log_negative_parts {

using engine::Tensor;

constexpr char kClamp[] = "clamp-input";

constexpr std::uint32_t kBadStep = 9;
constexpr double kUnknownLabel = -99;

// mean((output - log(1 + label))^2)
Tensor squared_log_error(const Tensor& output, const engine::Batch& batch, bool clamped) {
  Tensor argument = engine::add(batch.targets, 1.0);
  if (clamped) argument = engine::clamp(argument, 1, engine::kDigitsClasses);
  const Tensor error = engine::sub(output, engine::log(argument));
  return engine::mean(engine::mul(error, error));
}

ScenarioRun make(const ScenarioConfig& config) {
  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t unknown_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, unknown_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    std::vector<double> labels = batch.targets.to_vector();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (batch.sample_ids[i] == unknown_id) labels[i] = kUnknownLabel;
    }
    batch.targets = Tensor::from_values(labels, {static_cast<std::int64_t>(labels.size()), 1}, DType::kF32);
    return batch;
  };
  auto loss = [clamped = config.fix == kClamp](const Tensor& output, const engine::Batch& batch) {
    return squared_log_error(output, batch, clamped);
  };
  auto model = std::make_unique<engine::Mlp>(engine::MlpOptions{.sizes = {64, 64, 32, 1}, .seed = config.seed});
  return assemble(std::move(model), {.algorithm = "adam", .lr = 3e-3}, batches, loss, config);
}

}  // namespace log_negative_parts

std::vector<Scenario> log_negative() {
  using namespace log_negative_parts;
  return with_twin(
      {
          .name = "log-negative",
          .summary = "A hand-written log error meets a label of -99: the logarithm of a negative number",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kInvalid,
                       .phase = Phase::kLoss,
                       .module = "<loss>",
                       .op = "log",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kClamp, "the argument of the logarithm clamped to the range of real labels"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
