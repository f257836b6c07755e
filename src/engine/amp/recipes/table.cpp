// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "nanhunt/engine/recipes.h"

namespace nanhunt::engine {
namespace {

NamedRecipe apex(std::string_view name, std::string_view summary, const char* opt_level) {
  return {name, summary, [opt_level](TrainingSetup setup) {
            return apex_initialize(std::move(setup), {.opt_level = opt_level});
          }};
}

NamedRecipe lightning(std::string_view name, std::string_view summary, const char* precision) {
  return {name, summary, [precision](TrainingSetup setup) {
            return lightning_trainer(std::move(setup), {.precision = precision});
          }};
}

}  // namespace

std::span<const NamedRecipe> named_recipes() {
  static const std::array kAll = {
      apex("apex-o0", "Apex O0: pure fp32", "O0"),
      apex("apex-o1", "Apex O1: casts around ops, dynamic scale", "O1"),
      apex("apex-o2", "Apex O2: an fp16 model with fp32 batch norms and masters, dynamic scale", "O2"),
      apex("apex-o3", "Apex O3: pure fp16", "O3"),
      NamedRecipe{"apex-fp16-optimizer", "Apex network_to_half and FP16_Optimizer, static scale of 128",
                  [](TrainingSetup setup) { return apex_fp16_optimizer(std::move(setup), {.static_loss_scale = 128}); }},
      NamedRecipe{"fastai", "fastai v1 to_fp16: an fp16 model with fp32 batch norms and masters, dynamic scale",
                  [](TrainingSetup setup) { return fastai_to_fp16(std::move(setup)); }},
      NamedRecipe{"fastai-static", "fastai v1 to_fp16 with a static scale of 512, which looks for no overflow",
                  [](TrainingSetup setup) { return fastai_to_fp16(std::move(setup), {.dynamic = false}); }},
      lightning("lightning-16-mixed", "Lightning 16-mixed: fp16 autocast, dynamic scale", "16-mixed"),
      lightning("lightning-bf16-mixed", "Lightning bf16-mixed: bf16 autocast", "bf16-mixed"),
      lightning("lightning-16-true", "Lightning 16-true: everything in fp16", "16-true"),
      lightning("lightning-bf16-true", "Lightning bf16-true: everything in bf16", "bf16-true"),
      lightning("lightning-32-true", "Lightning 32-true: everything in fp32", "32-true"),
      lightning("lightning-64-true", "Lightning 64-true: everything in fp64", "64-true"),
  };
  return kAll;
}

}  // namespace nanhunt::engine
