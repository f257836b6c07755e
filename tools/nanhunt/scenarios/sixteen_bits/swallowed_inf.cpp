// SPDX-License-Identifier: Apache-2.0
// A hand-written norm divides by the root of a sum of squares. From some step on the loader forgets to normalise
// images: the squares pass 65504, and x / Inf is 0. No NaN is ever seen; the layer is dead and so is all before it.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace swallowed_inf_parts {

using engine::Tensor;

constexpr char kFp32Norm[] = "fp32-norm";
constexpr char kScaleFirst[] = "divide-by-amax-first";

constexpr std::uint32_t kBadStep = 6;
// 12-bit intensities. Over twelve seeds each image then starts with an activation past 1500; the square of 256
// overflows.
constexpr double kIntensity = 4095;

class L2Norm : public engine::Module {
 public:
  explicit L2Norm(std::string fix) : fix_(std::move(fix)) {}

 protected:
  Tensor forward(const Tensor& input) override {
    Tensor x = fix_ == kFp32Norm ? engine::to(input, DType::kF32) : input;
    if (fix_ == kScaleFirst) {
      const Tensor largest = engine::amax(engine::abs(x), -1, /*keepdim=*/true);
      x = engine::div(x, engine::clamp(largest, 1, 65504));
    }
    const Tensor sum_of_squares = engine::sum(engine::mul(x, x), -1, /*keepdim=*/true);
    return engine::to(engine::div(x, engine::sqrt(engine::add(sum_of_squares, 1e-3))), input.dtype());
  }

 private:
  std::string fix_;
};

ScenarioRun make(const ScenarioConfig& config) {
  const DType dtype = own_format(config, DType::kF16);
  auto batches = [order = training_order(config.seed), dtype](std::uint32_t step) {
    const std::vector<std::int64_t> ids = order.ids(step);
    engine::Batch batch = engine::make_digits_batch(ids, dtype);
    if (step >= kBadStep) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    }
    return batch;
  };
  return assemble(digits_model_around("norm", std::make_unique<L2Norm>(config.fix), config.seed, dtype),
                  {.algorithm = "adam", .lr = 1e-2, .fp32_masters = true}, batches, classification_loss, config);
}

}  // namespace swallowed_inf_parts

std::vector<Scenario> swallowed_inf() {
  using namespace swallowed_inf_parts;
  return with_twin(
      {
          .name = "swallowed-inf",
          .summary = "A norm divides by an overflowed sum of squares: x / Inf is 0, no NaN is seen, the layer is dead",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "norm",
                       .op = "mul",
                       .step = kBadStep,
                       .samples = {},
                       .sinks_stay_finite = true},
          .fixes = {{kFp32Norm, "the norm computed in fp32"},
                    {kScaleFirst, "each row divided by its largest magnitude before it is squared"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
