// SPDX-License-Identifier: Apache-2.0
// A hand-written exponential-linear unit chooses by `where` between x and exp(x) - 1 (pytorch/pytorch#68425, #52248).
// The branch that is not taken overflows: nobody sees the Inf in forward, but backward multiplies it by the 0 of that
// branch.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace where_branch_parts {

using engine::Tensor;

constexpr char kSafeInput[] = "two-selections";
constexpr char kClampFirst[] = "clamp-before-exp";

constexpr std::uint32_t kBadStep = 8;
// One image has intensities of 10 bits among normalised ones. Over twelve seeds the inputs of the unit start below 1.4
// for normal images and above 280 for that one; exp overflows in fp32 from 88.8.
constexpr double kIntensity = 1023;

class Elu : public engine::Module {
 public:
  explicit Elu(std::string fix) : fix_(std::move(fix)) {}

 protected:
  Tensor forward(const Tensor& input) override {
    const Tensor positive = engine::gt(input, 0);
    Tensor below = input;
    if (fix_ == kSafeInput) below = engine::masked_fill(input, positive, 0);
    if (fix_ == kClampFirst) below = engine::clamp(input, -100, 0);
    return engine::where(positive, input, engine::sub(engine::exp(below), 1.0));
  }

 private:
  std::string fix_;
};

ScenarioRun make(const ScenarioConfig& config) {
  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t odd_id = sample_first_met_at(order, kBadStep);
  return assemble(digits_model_around("act", std::make_unique<Elu>(config.fix), config.seed, DType::kF32),
                  {.algorithm = "adam", .lr = 1e-2}, digits_with_odd_sample(order, odd_id, kIntensity, DType::kF32),
                  classification_loss, config);
}

}  // namespace where_branch_parts

std::vector<Scenario> where_branch() {
  using namespace where_branch_parts;
  return with_twin(
      {
          .name = "where-branch",
          .summary = "The branch that `where` does not take overflows unseen; backward makes NaN of 0 times Inf",
          .steps = kSteps,
          .dtypes = {"fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "act",
                       .op = "exp",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kSafeInput, "0 selected as the argument of exp where its branch is not taken"},
                    {kClampFirst, "the argument of exp clamped to where its branch is taken"}},
          .make = make,
      },
      {"fp32"});
}

}  // namespace nanhunt::scenarios
