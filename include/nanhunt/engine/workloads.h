// SPDX-License-Identifier: Apache-2.0
// Bundled trainings in fp32, of which any recipe of mixed precision can be made: each bundled model on its data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "nanhunt/engine/recipes.h"

namespace nanhunt::engine {

// All that a Trainer is made of.
struct TrainingParts {
  TrainingSetup setup;
  BatchSource batches;
  LossFunction loss;
};
std::unique_ptr<Trainer> make_trainer(TrainingParts parts);

struct Workload {
  std::string name, summary;
  std::uint32_t steps = 0;      // default length
  std::int64_t batch_size = 0;  // default
  // An fp32 model, a bare optimizer, fp32 batches: the same bits at every call. Where there is data for it with
  // setup.options.validation, without autocast. `batch_size` is one that `refuses` has nothing against.
  std::function<TrainingParts(std::uint64_t seed, std::int64_t batch_size)> make;
  // Why it cannot train with this batch size; empty where it can.
  std::function<std::string(std::int64_t batch_size)> refuses;
};

// mlp, cnn and se-resnext classify the digits, unet sharpens them, gpt learns the text.
std::span<const Workload> named_workloads();
const Workload* find_workload(std::string_view name);  // null: none

}  // namespace nanhunt::engine
