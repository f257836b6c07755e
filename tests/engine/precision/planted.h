// SPDX-License-Identifier: Apache-2.0
// Trainings in which one layer cannot live in fp16, and their healthy twin.
#pragma once

#include <memory>
#include <string>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/modules.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/workloads.h"

namespace nanhunt::engine::testing {

// kFewBits: fits as long as inputs are as they are in training.
enum class Planted { kNothing, kOverflow, kUnderflow, kFewBits };

inline constexpr std::uint32_t kPlantedSteps = 60;
inline constexpr const char* kPlantedLayer = "middle.guilty";

// Multiplies by `factor` and back: the number between must fit the format. 1 is healthy.
class ThereAndBack : public Module {
 public:
  explicit ThereAndBack(double factor) : factor_(factor) {}

 protected:
  Tensor forward(const Tensor& input) override { return mul(mul(input, factor_), 1 / factor_); }

 private:
  double factor_;
};

// fc1, middle (innocent, guilty), fc2 on the digits.
inline std::unique_ptr<Module> planted_model(Planted planted, std::uint64_t seed) {
  const double factor = planted == Planted::kOverflow    ? 1e7
                        : planted == Planted::kUnderflow ? 1e-9
                        : planted == Planted::kFewBits   ? 2000
                                                         : 1;
  RandomStream random(seed, /*stream=*/0);
  auto middle = std::make_unique<Sequential>();
  if (planted == Planted::kFewBits) {
    middle->append("innocent", std::make_unique<Relu>());
  } else {
    middle->append("innocent", std::make_unique<Tanh>());
  }
  middle->append("guilty", std::make_unique<ThereAndBack>(factor));
  auto model = std::make_unique<Sequential>();
  model->append("fc1", std::make_unique<Linear>(kDigitsPixels, 32, random));
  model->append("middle", std::move(middle));
  model->append("fc2", std::make_unique<Linear>(32, kDigitsClasses, random));
  return model;
}

inline Workload planted_workload(Planted planted) {
  Workload workload;
  workload.name = "planted";
  workload.summary = "one layer that fp16 cannot hold, or none";
  workload.steps = kPlantedSteps;
  workload.batch_size = 32;
  workload.make = [planted](std::uint64_t seed, std::int64_t batch_size) {
    TrainingParts parts;
    parts.setup.model = planted_model(planted, seed);
    parts.setup.optimizer = {.algorithm = "adam", .lr = 1e-2};
    ValidationOptions validation;
    validation.batches = [](std::uint32_t) { return make_digits_batch(digits_test_ids().first(60), DType::kF32); };
    parts.setup.options.validation = validation;
    parts.batches = digits_train_batches(batch_size, seed, DType::kF32);
    parts.loss = [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch.targets); };
    return parts;
  };
  workload.refuses = [](std::int64_t) { return std::string(); };
  return workload;
}

}  // namespace nanhunt::engine::testing
