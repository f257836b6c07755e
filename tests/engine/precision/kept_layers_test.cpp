// SPDX-License-Identifier: Apache-2.0
// Layers that stay in fp32 whatever recipe is applied.
#include <gtest/gtest.h>

#include <cmath>

#include "nanhunt/engine/hooks.h"
#include "tests/engine/precision/planted.h"

namespace nanhunt::engine::testing {
namespace {

Module& module_at(Module& model, const std::string& path) {
  for (Module* module : model.modules()) {
    if (module->path() == path) return *module;
  }
  throw std::out_of_range(path);
}

std::unique_ptr<Trainer> trainer_with(Planted planted, const char* recipe, const std::string& kept) {
  TrainingParts parts = planted_workload(planted).make(1, 32);
  parts.setup.options.validation.reset();
  if (!kept.empty()) module_at(*parts.setup.model, kept).keep_fp32();
  parts.setup = find_recipe(recipe)->apply(std::move(parts.setup));
  return make_trainer(std::move(parts));
}

TEST(KeptLayer, computes_in_fp32_inside_autocast) {
  EXPECT_TRUE(std::isnan(trainer_with(Planted::kOverflow, "fp16", "")->step().loss));
  EXPECT_TRUE(std::isfinite(trainer_with(Planted::kOverflow, "fp16", kPlantedLayer)->step().loss));
  EXPECT_TRUE(std::isfinite(trainer_with(Planted::kOverflow, "fp16", "middle")->step().loss))
      << "with what is below it";
  EXPECT_TRUE(std::isnan(trainer_with(Planted::kOverflow, "fp16", "fc2")->step().loss));
}

TEST(KeptLayer, keeps_its_parameters_where_a_recipe_converts_the_model) {
  for (const char* recipe : {"O3", "16-true", "bf16-true", "fastai", "apex-fp16-optimizer"}) {
    SCOPED_TRACE(recipe);
    const auto trainer = trainer_with(Planted::kNothing, recipe, "fc1");
    for (const NamedTensor& entry : trainer->model().named_parameters()) {
      EXPECT_EQ(entry.tensor.dtype() == DType::kF32, entry.path.starts_with("fc1.")) << entry.path;
    }
    EXPECT_TRUE(std::isfinite(trainer->step().loss));
  }
}

TEST(KeptLayer, hands_on_fp32_and_the_next_layer_with_parameters_casts_it) {
  // given: what overflows fp16 lives between two layers without parameters
  const auto trainer = trainer_with(Planted::kOverflow, "O3", kPlantedLayer);
  EXPECT_TRUE(std::isfinite(trainer->step().loss));
  struct Casts : Observer {
    void on_op(const OpCall& call) noexcept override {
      if (call.op == "_to_copy" && call.phase == Phase::kForward) modules.emplace_back(call.module);
    }
    std::vector<std::string> modules;
  } casts;
  const HookHandle handle = add_observer(casts);
  trainer->step();
  // the model casts the batch, the kept layer its input, the next one what the kept one gave, the model its output
  EXPECT_EQ(casts.modules, (std::vector<std::string>{"", kPlantedLayer, "fc2", ""}));
}

TEST(KeptLayer, of_an_fp32_model_changes_no_bit) {
  const auto plain = trainer_with(Planted::kNothing, "fp32", ""), kept = trainer_with(Planted::kNothing, "fp32", "fc1");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(plain->step().loss, kept->step().loss);
}

TEST(Modules, are_listed_depth_first_with_the_root_first) {
  const auto model = planted_model(Planted::kNothing, 1);
  std::vector<std::string> paths;
  for (const Module* module : model->modules()) paths.push_back(module->path());
  EXPECT_EQ(paths, (std::vector<std::string>{"", "fc1", "middle", "middle.innocent", "middle.guilty", "fc2"}));
}

}  // namespace
}  // namespace nanhunt::engine::testing
