// SPDX-License-Identifier: Apache-2.0
// torch.amp as its examples use it: autocast around forward and loss, and with fp16 a GradScaler.
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/levels.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {

TrainingSetup torch_amp(TrainingSetup setup, DType dtype) {
  if (setup.model == nullptr) fail("torch_amp", "a model", "none");
  if (setup.options.autocast || setup.options.scaler) {
    fail("torch_amp", "options without autocast and scaler, which it chooses", "options with one");
  }
  setup.options.autocast = AutocastOptions{.dtype = dtype};
  if (dtype == DType::kF16) setup.options.scaler = GradScalerOptions{};
  return setup;
}

}  // namespace nanhunt::engine
