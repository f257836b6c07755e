// SPDX-License-Identifier: Apache-2.0
// A small network with batch norms on the digits, for any recipe.
#pragma once

#include <functional>
#include <memory>

#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"

namespace nanhunt::engine::testing {

inline TrainingSetup fp32_setup() {
  TrainingSetup setup;
  setup.model = std::make_unique<Cnn>(CnnOptions{.channels = 8});
  setup.optimizer = {.algorithm = "sgd", .lr = 0.05, .momentum = 0.9};
  return setup;
}

inline Tensor digits_loss(const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch.targets); }

// Batches are in fp32 whatever the recipe: it casts them itself.
inline std::unique_ptr<Trainer> train_on_digits(TrainingSetup setup, std::int64_t batch = 32) {
  return make_trainer(std::move(setup), digits_train_batches(batch, 3, DType::kF32), digits_loss);
}

inline std::unique_ptr<Trainer> train_by(const ApexOptions& options) {
  return train_on_digits(apex_initialize(fp32_setup(), options));
}

// Of one of the setup's parameters or buffers.
inline DType dtype_of(const Module& model, const std::string& path) {
  for (const auto& tensors : {model.named_parameters(), model.named_buffers()}) {
    for (const NamedTensor& entry : tensors) {
      if (entry.path == path) return entry.tensor.dtype();
    }
  }
  return DType::kBool;
}

}  // namespace nanhunt::engine::testing
