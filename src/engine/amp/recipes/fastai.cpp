// SPDX-License-Identifier: Apache-2.0
// fastai v1's to_fp16: an fp16 model with fp32 batch norms, and the casts of its MixedPrecision callback. The loss scale
// is src/engine/amp/scalers/fastai.cpp, plugged into the same loop.
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/apex_model.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

class MixedPrecision final : public Callback {
  // fastai does this where it loads data.
  void on_batch_begin(Batch& batch) override {
    if (batch.inputs.defined() && is_floating(batch.inputs.dtype())) batch.inputs = to(batch.inputs, DType::kF16);
  }
  void on_loss_begin(Tensor& output) override {
    if (is_floating(output.dtype())) output = to(output, DType::kF32);
  }
};

}  // namespace

TrainingSetup fastai_to_fp16(TrainingSetup setup, const FastaiOptions& options) {
  if (setup.model == nullptr) fail("to_fp16", "a model", "none");
  if (setup.options.autocast || setup.options.scaler) {
    fail("to_fp16", "options without autocast and scaler, which it chooses", "options with one");
  }
  setup.model->to(DType::kF16, is_batch_norm);
  setup.optimizer.fp32_masters = true;
  setup.options.callbacks.emplace_back([](Trainer&) { return std::make_unique<MixedPrecision>(); });
  setup.options.scaler = FastaiScalerOptions{.loss_scale = options.loss_scale,
                                             .dynamic = options.dynamic,
                                             .max_noskip = options.max_noskip,
                                             .max_scale = options.max_scale};
  if (options.clip) setup.options.clip_norm = options.clip;
  return setup;
}

}  // namespace nanhunt::engine
