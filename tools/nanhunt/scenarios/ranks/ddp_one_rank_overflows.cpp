// SPDX-License-Identifier: Apache-2.0
// Data parallel training on four ranks, one of which reads a shard that nobody normalised: there a layer's activations
// pass 65504 in fp16 at any loss scale. The reduction makes every rank's gradients NaN, so every rank skips every step,
// and each of them looks guilty.
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace ddp_one_rank_overflows_parts {

constexpr char kFp32Layer[] = "fp32-layer";

constexpr std::uint32_t kRanks = 4, kBadRank = 2;
constexpr std::uint32_t kBadStep = 6;
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
    const std::size_t share = ids.size() / kRanks;
    for (std::size_t i = kBadRank * share; step >= kBadStep && i < (kBadRank + 1) * share; ++i) {
      scale_sample(batch, ids[i], kIntensity);
    }
    return batch;
  };
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 1024};
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2}, batches, classification_loss, config, options);
}

}  // namespace ddp_one_rank_overflows_parts

std::vector<Scenario> ddp_one_rank_overflows() {
  using namespace ddp_one_rank_overflows_parts;
  return with_twin(
      {
          .name = "ddp-one-rank-overflows",
          .summary = "One of four ranks overflows in forward: all skip every step, and the scale falls for ever",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .ranks = kRanks,
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kScalerCollapse,
                       .phase = Phase::kForward,
                       .module = "fc1",
                       .op = "mm",
                       .step = kBadStep,
                       .samples = {},
                       .rank = kBadRank},
          .fixes = {{kFp32Layer, "the overflowing layer outside autocast, in fp32"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
