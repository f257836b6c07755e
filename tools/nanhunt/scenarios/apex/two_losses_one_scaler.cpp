// SPDX-License-Identifier: Apache-2.0
// Apex's O1 with two losses of two networks under one loss scaler. The classifier reads images of 8 bits and sums its
// loss: a scale above 4 overflows. The other network guesses the lower half of an image, and its loss has a small
// weight: at that scale its gradients are stored as 0. With num_losses=2 each loss has the scale that an earlier part
// of the run has found for it.
#include <iterator>

#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace two_losses_one_scaler_parts {

using engine::Tensor;

constexpr char kScalerEach[] = "scaler-for-each-loss";

constexpr std::int64_t kHalf = engine::kDigitsPixels / 2;
constexpr double kIntensity = 256;  // of the brightest pixel
// A weight's gradient is at most 64 * 256: at a scale of 2 it stays below 32768.
constexpr double kClassifierScale = 2;
// An error of 1 has a gradient of 2e-5 / 2048 = 1e-8: below 2^-25 at a scale of 2, and 0.01 at 2^20.
constexpr double kGuessWeight = 1e-5, kGuessScale = 0x1p20;

// The two networks as one module: whole images are classified, upper halves completed.
class TwoNetworks : public engine::Module {
 public:
  explicit TwoNetworks(engine::RandomStream random)
      : classifier_(register_module("classifier", std::make_unique<engine::Linear>(engine::kDigitsPixels,
                                                                                  engine::kDigitsClasses, random))),
        guess_(register_module("guess", std::make_unique<engine::Sequential>())) {
    guess_.append("encoder", std::make_unique<engine::Linear>(kHalf, 24, random));
    guess_.append("act", std::make_unique<engine::Tanh>());
    guess_.append("middle", std::make_unique<engine::Linear>(24, 24, random));
    guess_.append("act2", std::make_unique<engine::Tanh>());
    guess_.append("decoder", std::make_unique<engine::Linear>(24, kHalf, random));
  }

 protected:
  Tensor forward(const Tensor& input) override {
    return input.size(1) == engine::kDigitsPixels ? classifier_(input) : guess_(input);
  }

 private:
  engine::Module& classifier_;
  engine::Sequential& guess_;
};

// Rows of kHalf pixels of their own.
Tensor half_of(const Tensor& images, std::int64_t first) {
  Tensor half = Tensor::empty({images.size(0), kHalf}, images.dtype());
  half.copy_from(engine::narrow(images, 1, first, kHalf));
  return half;
}

// Micro-batches take turns: one for the first loss, one for the second.
engine::BatchSource batches_of(const engine::BatchOrder& order, bool says_which_loss) {
  return [order, says_which_loss](std::uint32_t number) {
    const std::vector<std::int64_t> ids = order.ids(number / 2);
    engine::Batch batch = engine::make_digits_batch(ids, DType::kF32);
    if (says_which_loss) batch.loss_id = number % 2;
    if (number % 2 == 0) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    } else {
      const Tensor images = batch.inputs;
      batch.inputs = half_of(images, 0);
      batch.targets = half_of(images, kHalf);
    }
    return batch;
  };
}

Tensor loss_of(const Tensor& output, const engine::Batch& batch) {
  const bool classifies = output.size(1) == engine::kDigitsClasses;
  if (classifies) return engine::mul(classification_loss(output, batch), static_cast<double>(output.size(0)));
  const Tensor error = engine::sub(output, batch.targets);
  return engine::mul(engine::mean(engine::mul(error, error)), kGuessWeight);
}

ScenarioRun make(const ScenarioConfig& config) {
  const bool each = config.fix == kScalerEach;
  engine::TrainingSetup setup;
  setup.model = std::make_unique<TwoNetworks>(engine::RandomStream(config.seed, /*stream=*/0));
  setup.optimizer = {.algorithm = "adam", .lr = 1e-3};
  setup.options.micro_batches = 2;
  setup.options.average_micro_batches = false;
  setup = engine::apex_initialize(std::move(setup), {.num_losses = each ? 2U : 1U});
  ScenarioRun run = assemble(std::move(setup), batches_of(training_order(config.seed), each), loss_of, config);
  // amp.load_state_dict of the earlier part
  const std::pair<std::string, double> found[] = {
      {"loss_scaler0.loss_scale", kClassifierScale}, {"loss_scaler0.unskipped", 0},
      {"loss_scaler1.loss_scale", kGuessScale},      {"loss_scaler1.unskipped", 0}};
  if (config.scaler.empty()) run.trainer->scaler()->load({std::begin(found), std::end(found)});
  return run;
}

}  // namespace two_losses_one_scaler_parts

std::vector<Scenario> two_losses_one_scaler() {
  using namespace two_losses_one_scaler_parts;
  return with_twin(
      {
          .name = "two-losses-one-scaler",
          .summary = "Two losses share one loss scale: what the larger one allows is too small for the other",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .only_own_recipe = true,
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kUnderflow,
                       .phase = Phase::kBackward,
                       .module = "<loss>",
                       .op = "sub_backward",
                       .step = 0,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kScalerEach, "a loss scaler for each loss (num_losses=2, loss_id)"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
