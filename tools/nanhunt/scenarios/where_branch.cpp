// SPDX-License-Identifier: Apache-2.0
// A hand-written softplus chooses by `where` between x and log(1 + exp(x)). The branch that is not taken overflows:
// nobody sees the Inf in forward, but backward multiplies it by the 0 of the branch not taken.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace {

using engine::Tensor;

constexpr char kClampFirst[] = "clamp-before-exp";

constexpr std::uint32_t kBadStep = 8;
// One image has intensities of 8 bits among normalised ones. Over twelve seeds the inputs of the softplus start below
// 1.4 for normal images and above 70 for any with 8 bits; exp overflows in fp16 from 11.1.
constexpr double kIntensity = 255;
constexpr double kThreshold = 8;  // softplus(x) is x from here on, to the precision of fp16

class Softplus : public engine::Module {
 public:
  explicit Softplus(std::string fix) : fix_(std::move(fix)) {}

 protected:
  Tensor forward(const Tensor& input) override {
    const Tensor small = fix_ == kClampFirst ? engine::clamp(input, -65504, kThreshold) : input;
    const Tensor log_branch = engine::log(engine::add(engine::exp(small), 1.0));
    return engine::where(engine::gt(input, kThreshold), input, log_branch);
  }

 private:
  std::string fix_;
};

ScenarioRun make(const ScenarioConfig& config) {
  constexpr DType kDtype = DType::kF16;
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc1", std::make_unique<engine::Linear>(engine::kDigitsPixels, 64, random, kDtype));
  model->append("act", std::make_unique<Softplus>(config.fix));
  model->append("fc2", std::make_unique<engine::Linear>(64, engine::kDigitsClasses, random, kDtype));

  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t odd_id = sample_first_met_at(order, kBadStep);
  auto batches = [order, odd_id](std::uint32_t step) {
    engine::Batch batch = engine::make_digits_batch(order.ids(step), kDtype);
    scale_sample(batch, odd_id, kIntensity);
    return batch;
  };
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-2, .fp32_masters = true}, batches,
                  classification_loss, config);
}

}  // namespace

std::vector<Scenario> where_branch() {
  return with_twin(
      {
          .name = "where-branch",
          .summary = "The branch that `where` does not take overflows unseen; backward makes NaN of 0 times Inf",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "act",
                       .op = "exp",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kClampFirst, "the argument of exp clamped to where its branch is taken"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
