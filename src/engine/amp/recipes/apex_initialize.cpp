// SPDX-License-Identifier: Apache-2.0
// amp.initialize: checks what comes in, converts the model, and chooses casts, masters and scaler by the properties.
#include <fmt/format.h>

#include <stdexcept>

#include "nanhunt/engine/loss_scalers.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/apex_model.h"
#include "src/engine/amp/recipes/torch_names.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

void expect_not_half(const char* what, const std::vector<NamedTensor>& tensors) {
  for (const auto& [path, tensor] : tensors) {
    if (tensor.dtype() != DType::kF16) continue;
    throw std::invalid_argument(
        fmt::format("Found {} {} with type {}, expected torch.cuda.FloatTensor.\n"
                    "When using amp.initialize, you do not need to call .half() on your model\n"
                    "before passing it, no matter what optimization level you choose.",
                    what, path, torch_tensor_type(tensor.dtype())));
  }
}

void expect_bare(const TrainingSetup& setup) {
  if (setup.model == nullptr) fail("apex_initialize", "a model", "none");
  if (setup.optimizer.fp32_masters) {
    throw std::invalid_argument(
        "An incoming optimizer is an instance of apex.fp16_utils.FP16_Optimizer. The optimizer(s) passed to "
        "amp.initialize() must be bare \ninstances of either ordinary Pytorch optimizers, or Apex fused \n"
        "optimizers (FusedAdam or FusedSGD). \nYou should not manually wrap your optimizer in either \n"
        "apex.fp16_utils.FP16_Optimizer or apex.optimizers.FP16_Optimizer. \n"
        "amp.initialize will take care of that for you (if necessary) based \n"
        "on the specified opt_level (and optional overridden properties).");
  }
  if (setup.options.autocast || setup.options.scaler) {
    fail("apex_initialize", "options without autocast and scaler, which the level chooses", "options with one");
  }
}

// Apex's optimizers take fp16 and fp32.
void expect_known_formats(const std::vector<NamedTensor>& parameters) {
  for (const auto& [path, tensor] : parameters) {
    if (tensor.dtype() == DType::kF16 || tensor.dtype() == DType::kF32) continue;
    throw std::invalid_argument(
        "Optimizer's parameters must be either torch.cuda.FloatTensor or torch.cuda.HalfTensor. Received " +
        torch_tensor_type(tensor.dtype()));
  }
}

void cast_model(Module& model, const ApexProperties& properties, std::optional<DType> outputs) {
  if (!properties.cast_model_type) {
    if (outputs) model.set_call_casts({}, outputs);
    return;
  }
  if (properties.keep_batchnorm_fp32.value_or(false)) {
    model.to(*properties.cast_model_type, is_batch_norm);
  } else {
    model.to(*properties.cast_model_type);
  }
  model.set_call_casts(properties.cast_model_type, outputs.value_or(DType::kF32));
}

}  // namespace

TrainingSetup apex_initialize(TrainingSetup setup, const ApexOptions& options) {
  const ApexProperties properties = apex_properties(options);
  if (!properties.enabled) return setup;
  expect_bare(setup);
  expect_not_half("param", setup.model->named_parameters());
  expect_not_half("buffer", setup.model->named_buffers());
  cast_model(*setup.model, properties, options.cast_model_outputs);
  expect_known_formats(setup.model->named_parameters());
  if (properties.patch_torch_functions) setup.options.autocast = AutocastOptions{.lists = CastLists::kApex};
  setup.optimizer.fp32_masters = properties.master_weights.value_or(false);
  const bool scales = setup.optimizer.fp32_masters || properties.loss_scale != 1.0;
  if (scales) {
    setup.options.scaler = ApexAmpOptions{.scaler = {.loss_scale = properties.loss_scale,
                                                     .min_loss_scale = options.min_loss_scale,
                                                     .max_loss_scale = options.max_loss_scale},
                                          .num_losses = options.num_losses,
                                          .delay_unscale = options.delay_unscale};
  }
  return setup;
}

std::vector<NamedTensor> apex_saved_model(const Module& model) {
  std::vector<NamedTensor> saved = model.named_parameters();
  for (NamedTensor& buffer : model.named_buffers()) saved.push_back(std::move(buffer));
  for (auto& [path, tensor] : saved) {
    Tensor copy = Tensor::empty(tensor.sizes(), is_floating(tensor.dtype()) ? DType::kF32 : tensor.dtype(),
                                tensor.device());
    copy.copy_from(tensor);
    tensor = std::move(copy);
  }
  return saved;
}

std::unique_ptr<Trainer> make_trainer(TrainingSetup setup, BatchSource batches, LossFunction loss) {
  if (setup.model == nullptr) fail("make_trainer", "a model", "none");
  auto parameters = setup.model->named_parameters();
  return std::make_unique<Trainer>(std::move(setup.model), make_optimizer(std::move(parameters), setup.optimizer),
                                   std::move(batches), std::move(loss), setup.options);
}

}  // namespace nanhunt::engine
