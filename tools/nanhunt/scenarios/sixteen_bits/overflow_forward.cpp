// SPDX-License-Identifier: Apache-2.0
// The output projection of a feed-forward block passes 65504, as in large language models whose residual
// stream is left unscaled because a norm follows. The norm turns the Inf into NaN and is not at fault.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace overflow_forward_parts {

using engine::Tensor;

constexpr char kBf16[] = "bf16";
constexpr char kFp32Layer[] = "fp32-compute";

// One image is stored with 12-bit intensities among normalised ones; the norm would have taken it.
constexpr std::uint32_t kBadStep = 12;
constexpr double kIntensity = 4095;
// Weights of the projection are large, as trained ones can be. Over twelve seeds its outputs stay below 140 for normal
// images and reach 1.9e5 to 3.3e5 for the odd one, a factor of 2.9 past 65504; machines differ by less than a percent.
constexpr std::int64_t kHidden = 256;
constexpr double kWeightStddev = 8;

class Projection : public engine::Module {
 public:
  Projection(std::int64_t in, std::int64_t out, engine::RandomStream& random, DType dtype, bool in_fp32)
      : weight_(register_parameter("weight", engine::normal_tensor({out, in}, 0, kWeightStddev, dtype, random))),
        bias_(register_parameter("bias", Tensor::zeros({out}, dtype))),
        in_fp32_(in_fp32) {}

 protected:
  Tensor forward(const Tensor& input) override {
    if (!in_fp32_) return engine::linear(input, weight_, bias_);
    constexpr DType kWide = DType::kF32;
    return engine::linear(engine::to(input, kWide), engine::to(weight_, kWide), engine::to(bias_, kWide));
  }

 private:
  Tensor& weight_;
  Tensor& bias_;
  bool in_fp32_;
};

ScenarioRun make(const ScenarioConfig& config) {
  const DType dtype = own_format(config, config.fix == kBf16 ? DType::kBF16 : DType::kF16);
  engine::RandomStream random(config.seed, /*stream=*/0);
  auto model = std::make_unique<engine::Sequential>();
  model->append("fc1", std::make_unique<engine::Linear>(engine::kDigitsPixels, kHidden, random, dtype));
  model->append("relu1", std::make_unique<engine::Relu>());
  model->append("fc2", std::make_unique<Projection>(kHidden, 64, random, dtype, config.fix == kFp32Layer));
  model->append("norm", make_fp32_rms_norm(dtype));
  model->append("fc3", std::make_unique<engine::Linear>(64, engine::kDigitsClasses, random, dtype));

  const engine::BatchOrder order = training_order(config.seed);
  const std::int64_t odd_id = sample_first_met_at(order, kBadStep);
  return assemble(std::move(model), {.algorithm = "adam", .lr = 1e-3, .fp32_masters = true},
                  digits_with_odd_sample(order, odd_id, kIntensity, dtype), classification_loss, config);
}

}  // namespace overflow_forward_parts

std::vector<Scenario> overflow_forward() {
  using namespace overflow_forward_parts;
  return with_twin(
      {
          .name = "overflow-forward",
          .summary =
              "A layer's fp16 activations pass 65504 after some clean steps; the norm behind it makes NaN of them",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "fc2",
                       .op = "addmm",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kFp32Layer, "the overflowing layer computed and stored in fp32"},
                    {kBf16, "bf16 instead of fp16, which has the range of fp32"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
