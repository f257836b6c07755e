// SPDX-License-Identifier: Apache-2.0
// A batch norm whose kernel adds up means and squares in fp16, as fp16 models had it before batch norms were kept in
// fp32. A batch of images that were not normalised carries the sum of a channel past 65504: its mean is Inf, and all of
// it NaN. The numbers themselves fit; to fp32 statistics such a batch is like any other.
#include "nanhunt/engine/ops.h"
#include "tools/nanhunt/scenarios/build.h"
#include "tools/nanhunt/scenarios/registry.h"

namespace nanhunt::scenarios {
namespace bn_fp16_statistics_parts {

constexpr char kFp32Statistics[] = "fp32-statistics";

// One batch is stored with 12-bit intensities. Over twelve seeds the largest sum of a channel is then 4e6 to 7.6e6, 60
// times 65504 and more; before, it stays below 1950, where a sum in fp16 does not stall either.
constexpr std::uint32_t kBadStep = 12;
constexpr double kIntensity = 4095;
constexpr std::int64_t kChannels = 16;

class Classifier : public engine::Sequential {
 public:
  Classifier(std::uint64_t seed, DType dtype, bool in_fp32) {
    engine::RandomStream random(seed, /*stream=*/0);
    const auto statistics = in_fp32 ? engine::NormStatistics::kOpMath : engine::NormStatistics::kInput;
    append("conv", std::make_unique<engine::Conv2d>(1, kChannels, engine::Conv2dOptions{.with_bias = false}, random,
                                                    dtype));
    append("bn", std::make_unique<engine::BatchNorm2d>(kChannels, in_fp32 ? DType::kF32 : dtype, 0.1, 1e-5,
                                                       statistics));
    append("relu", std::make_unique<engine::Relu>());
    append("pool", std::make_unique<engine::AvgPool2d>(2));
    append("flatten", std::make_unique<engine::Flatten>());
    append("fc", std::make_unique<engine::Linear>(16 * kChannels, engine::kDigitsClasses, random, dtype));
  }

 protected:
  engine::Tensor forward(const engine::Tensor& input) override {
    return Sequential::forward(engine::reshape(input, {-1, 1, 8, 8}));
  }
};

ScenarioRun make(const ScenarioConfig& config) {
  const DType dtype = own_format(config, DType::kF16);
  auto batches = [order = training_order(config.seed), dtype](std::uint32_t step) {
    const std::vector<std::int64_t> ids = order.ids(step);
    engine::Batch batch = engine::make_digits_batch(ids, dtype);
    if (step == kBadStep) {
      for (const std::int64_t id : ids) scale_sample(batch, id, kIntensity);
    }
    return batch;
  };
  return assemble(std::make_unique<Classifier>(config.seed, dtype, config.fix == kFp32Statistics),
                  {.algorithm = "adam", .lr = 3e-3, .fp32_masters = true}, batches, classification_loss, config);
}

}  // namespace bn_fp16_statistics_parts

std::vector<Scenario> bn_fp16_statistics() {
  using namespace bn_fp16_statistics_parts;
  return with_twin(
      {
          .name = "bn-fp16-statistics",
          .summary = "A batch norm adds up its statistics in fp16: a batch of large numbers carries sums past 65504, "
                     "and whole channels are NaN",
          .steps = kSteps,
          .dtypes = {"fp16", "fp32"},
          .expected = {.status = VerdictStatus::kFault,
                       .cls = FindingClass::kOverflow,
                       .phase = Phase::kForward,
                       .module = "bn",
                       .op = "native_batch_norm",
                       .step = kBadStep,
                       .samples = {}},
          .fixes = {{kFp32Statistics, "the norm in fp32: its statistics, those of the batch and the running ones, and "
                                      "its parameters"}},
          .make = make,
      },
      {"fp16", "fp32"});
}

}  // namespace nanhunt::scenarios
