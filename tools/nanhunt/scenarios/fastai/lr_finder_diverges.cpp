// SPDX-License-Identifier: Apache-2.0
// A learning rate finder under fastai's mixed precision that neither stops nor restores: its ramp runs on past the
// divergence that it was to find until fp16 overflows, and then training goes on with what is left. That something
// overflows there is the finder's doing: no format, no loss scale and no layer is at fault.
#include "nanhunt/engine/lr_finder.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace lr_finder_diverges_parts {

using engine::Tensor;

constexpr char kRestores[] = "stop-and-restore";

// The rate grows threefold a step; the encoder and the decoder drive each other up from a rate of 2 on, by the square
// of the last step's factor.
constexpr double kStartLr = 1e-6, kEndLr = 1e6, kGoodLr = 0.5;
constexpr std::uint32_t kRampSteps = 24, kBadStep = 17;
constexpr double kSmallScale = 2;  // gradients stay far from overflow until activations do

Tensor reconstruction_loss(const Tensor& output, const engine::Batch& batch) {
  const Tensor error = engine::sub(output, batch.targets);
  return engine::mean(engine::mul(error, error));
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("encoder", std::make_unique<engine::Linear>(engine::kDigitsPixels, 32, random));
  model->append("decoder", std::make_unique<engine::Linear>(32, engine::kDigitsPixels, random));
  engine::TrainingSetup setup;
  setup.model = std::move(model);
  setup.optimizer = {.algorithm = "sgd", .lr = kGoodLr};
  setup = in_own_recipe(config, std::move(setup), [](engine::TrainingSetup plain) {
    return engine::fastai_to_fp16(std::move(plain), {.loss_scale = kSmallScale});
  });
  const bool restores = config.fix == kRestores;
  const engine::LrFinderOptions finder{.start_lr = kStartLr,
                                       .end_lr = kEndLr,
                                       .steps = kRampSteps,
                                       .stop_div = restores,
                                       .restores = restores};
  setup.options.callbacks.emplace_back(
      [finder](engine::Trainer& trainer) { return std::make_unique<engine::LrFinder>(trainer, finder); });
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    batch.targets = batch.inputs;
    return batch;
  };
  return assemble(std::move(setup), batches, reconstruction_loss, config);
}

}  // namespace lr_finder_diverges_parts

std::vector<Scenario> lr_finder_diverges() {
  using namespace lr_finder_diverges_parts;
  return with_twin(
      {
          .name = "lr-finder-diverges",
          .summary = "A learning rate finder's ramp runs on past divergence, and training goes on with what it left",
          .steps = 2 * kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kExploding,
                       .phase = Phase::kForward,
                       .module = {},
                       .op = {},
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kRestores, "the ramp stops where the loss diverges, and model and optimizer are restored"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
