// SPDX-License-Identifier: Apache-2.0
// A learning rate far too high: loss, gradients and weights of all layers grow together for several steps until
// something, somewhere, overflows. Where that happens says nothing.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace high_lr_parts {

using engine::Tensor;

constexpr char kLowerLr[] = "lower-lr";

// The two layers drive each other up. Over twelve seeds the loss passes 1, 700 and 7e11 in steps 2, 3 and 4, where the
// encoder's weights have grown more than the decoder's by 1.6 at least; the squared error overflows in step 5.
constexpr double kHighLr = 8, kGoodLr = 0.5;
constexpr std::uint32_t kBadStep = 5;

Tensor reconstruction_loss(const Tensor& output, const engine::Batch& batch) {
  const Tensor error = engine::sub(output, batch.targets);
  return engine::mean(engine::mul(error, error));
}

ScenarioRun make(const ScenarioConfig& config) {
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("encoder", std::make_unique<engine::Linear>(engine::kDigitsPixels, 32, random));
  model->append("decoder", std::make_unique<engine::Linear>(32, engine::kDigitsPixels, random));
  auto batches = [order = training_order(config.seed)](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), DType::kF32);
    batch.targets = batch.inputs;
    return batch;
  };
  const double lr = config.fix == kLowerLr ? kGoodLr : kHighLr;
  return assemble(std::move(model), {.algorithm = "sgd", .lr = lr}, batches, reconstruction_loss, config);
}

}  // namespace high_lr_parts

std::vector<Scenario> high_lr() {
  using namespace high_lr_parts;
  return with_twin(
      {
          .name = "high-lr",
          .summary = "A learning rate far too high: everything grows for several steps, then overflows anywhere",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kExploding,
                       .phase = Phase::kLoss,
                       .module = "encoder",
                       .op = {},
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kLowerLr, "a learning rate of 0.5 instead of 8"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
