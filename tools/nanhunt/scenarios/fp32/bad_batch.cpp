// SPDX-License-Identifier: Apache-2.0
// One image of the data set carries a NaN pixel.
#include <algorithm>
#include <limits>

#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace bad_batch_parts {

constexpr char kDropBad[] = "drop-bad-samples";

constexpr std::uint32_t kBadStep = 7;
constexpr std::int64_t kBadPixel = 27;  // near the middle of the image

ScenarioRun make(const ScenarioConfig& config) {
  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t bad_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, bad_id, drop = config.fix == kDropBad](std::uint32_t step) {
    std::vector<std::int64_t> ids = order.ids(step);
    if (drop) std::erase_if(ids, [&](std::int64_t id) { return id == bad_id; });
    engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
    set_pixel(batch, bad_id, kBadPixel, std::numeric_limits<double>::quiet_NaN());
    return batch;
  };
  return assemble(std::make_unique<engine::Mlp>(engine::MlpOptions{.seed = config.seed}),
                  {.algorithm = "adam", .lr = 3e-3}, batches, classification_loss, config);
}

}  // namespace bad_batch_parts

std::vector<Scenario> bad_batch() {
  using namespace bad_batch_parts;
  return with_twin(
      {
          .name = "bad-batch",
          .summary = "One sample of the data set carries a NaN and is met after some clean steps",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kBadInput,
                       .phase = Phase::kData,
                       .module = std::nullopt,
                       .op = "<batch>",
                       .step = kBadStep,
                       .samples = {sample_first_met_at(training_order(ScenarioConfig{}.seed), kBadStep)}},
          .fixes = {{kDropBad, "samples with non-finite pixels left out of the batch"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
