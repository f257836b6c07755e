// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <utility>

#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/recipes/levels.h"

namespace nanhunt::engine {
namespace {

NamedRecipe torch(std::string_view name, std::string_view summary, DType dtype) {
  return {name, summary, dtype, [dtype](TrainingSetup setup) { return torch_amp(std::move(setup), dtype); }};
}

NamedRecipe apex(std::string_view name, std::string_view summary, const char* opt_level, DType dtype = DType::kF16) {
  return {name, summary, dtype,
          [opt_level](TrainingSetup setup) { return apex_initialize(std::move(setup), {.opt_level = opt_level}); }};
}

NamedRecipe lightning(std::string_view name, std::string_view summary, const char* precision, DType dtype) {
  return {name, summary, dtype,
          [precision](TrainingSetup setup) { return lightning_trainer(std::move(setup), {.precision = precision}); }};
}

struct SaidAs {
  std::string_view as, name;
};
constexpr std::array kSaidAs = {
    SaidAs{"fp16", "torch-amp-fp16"},
    SaidAs{"bf16", "torch-amp-bf16"},
    SaidAs{"O0", "apex-o0"},
    SaidAs{"O1", "apex-o1"},
    SaidAs{"O2", "apex-o2"},
    SaidAs{"O3", "apex-o3"},
    SaidAs{"16-mixed", "lightning-16-mixed"},
    SaidAs{"bf16-mixed", "lightning-bf16-mixed"},
    SaidAs{"16-true", "lightning-16-true"},
    SaidAs{"bf16-true", "lightning-bf16-true"},
    SaidAs{"32-true", "lightning-32-true"},
    SaidAs{"64-true", "lightning-64-true"},
};

}  // namespace

std::span<const NamedRecipe> named_recipes() {
  static const std::array kAll = {
      NamedRecipe{"fp32", "the model as it is, in fp32", DType::kF32, [](TrainingSetup setup) { return setup; }},
      torch("torch-amp-fp16", "torch.amp: fp16 autocast, GradScaler", DType::kF16),
      torch("torch-amp-bf16", "torch.amp: bf16 autocast, no scaler", DType::kBF16),
      apex("apex-o0", "Apex O0: pure fp32", "O0", DType::kF32),
      apex("apex-o1", "Apex O1: casts around ops, dynamic scale", "O1"),
      apex("apex-o2", "Apex O2: an fp16 model with fp32 batch norms and masters, dynamic scale", "O2"),
      apex("apex-o3", "Apex O3: pure fp16", "O3"),
      NamedRecipe{
          "apex-fp16-optimizer", "Apex network_to_half and FP16_Optimizer, static scale of 128", DType::kF16,
          [](TrainingSetup setup) { return apex_fp16_optimizer(std::move(setup), {.static_loss_scale = 128}); }},
      NamedRecipe{"fastai", "fastai v1 to_fp16: an fp16 model with fp32 batch norms and masters, dynamic scale",
                  DType::kF16, [](TrainingSetup setup) { return fastai_to_fp16(std::move(setup)); }},
      NamedRecipe{"fastai-static", "fastai v1 to_fp16 with a static scale of 512, which looks for no overflow",
                  DType::kF16,
                  [](TrainingSetup setup) { return fastai_to_fp16(std::move(setup), {.dynamic = false}); }},
      lightning("lightning-16-mixed", "Lightning 16-mixed: fp16 autocast, dynamic scale", "16-mixed", DType::kF16),
      lightning("lightning-bf16-mixed", "Lightning bf16-mixed: bf16 autocast", "bf16-mixed", DType::kBF16),
      lightning("lightning-16-true", "Lightning 16-true: everything in fp16", "16-true", DType::kF16),
      lightning("lightning-bf16-true", "Lightning bf16-true: everything in bf16", "bf16-true", DType::kBF16),
      lightning("lightning-32-true", "Lightning 32-true: everything in fp32", "32-true", DType::kF32),
      lightning("lightning-64-true", "Lightning 64-true: everything in fp64", "64-true", DType::kF64),
  };
  return kAll;
}

const NamedRecipe* find_recipe(std::string_view name) {
  for (const SaidAs& said : kSaidAs) {
    if (said.as == name) name = said.name;
  }
  const auto all = named_recipes();
  const auto found = std::find_if(all.begin(), all.end(), [&](const NamedRecipe& known) { return known.name == name; });
  return found == all.end() ? nullptr : &*found;
}

TrainingSetup apply_recipe(const NamedRecipe& recipe, TrainingSetup setup) {
  const std::optional<double> clip = std::exchange(setup.options.clip_norm, std::nullopt);
  setup = recipe.apply(std::move(setup));
  if (clip) setup.options.clip_norm = clip;
  if (setup.options.validation) setup.options.validation->autocast = setup.options.autocast;
  return setup;
}

}  // namespace nanhunt::engine
