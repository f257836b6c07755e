// SPDX-License-Identifier: Apache-2.0
// A healthy run of every recipe: nobody finds fault with it, whatever its modules are called, and watching changes
// nothing.
#include <gtest/gtest.h>

#include "nanhunt/engine/recipes.h"
#include "tests/scenarios/hunt_scenario.h"
#include "tests/support/bytes_of.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/build.h"

namespace nanhunt {
namespace {

using scenarios::Scenario;
using scenarios::ScenarioConfig;

scenarios::ScenarioRun run_of(const engine::NamedRecipe& recipe, const ScenarioConfig& config) {
  engine::TrainingSetup setup;
  setup.model = std::make_unique<engine::Cnn>(engine::CnnOptions{.channels = 8, .seed = config.seed});
  setup.optimizer = {.algorithm = "sgd", .lr = 0.05, .momentum = 0.9};
  return assemble(recipe.apply(std::move(setup)), engine::digits_train_batches(32, config.seed, DType::kF32),
                  scenarios::classification_loss, config);
}

class Recipe : public testing::TestWithParam<std::size_t> {
 protected:
  const engine::NamedRecipe& recipe() const { return engine::named_recipes()[GetParam()]; }
  Scenario healthy() const {
    Scenario scenario;
    scenario.name = std::string(recipe().name);
    scenario.steps = 30;
    scenario.make = [&recipe = recipe()](const ScenarioConfig& config) { return run_of(recipe, config); };
    return scenario;
  }
};
INSTANTIATE_TEST_SUITE_P(Recipes, Recipe, testing::Range(std::size_t{0}, engine::named_recipes().size()),
                         [](const auto& given) {
                           std::string name(engine::named_recipes()[given.param].name);
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// bf16 weights near 1 lie 2^-8 apart or 2^-7: most updates of the batch norms' weights are smaller. To be told so is right.
bool loses_updates(const engine::NamedRecipe& recipe) { return recipe.name == "lightning-bf16-true"; }

TEST_P(Recipe, is_found_healthy_with_names_and_without) {
  for (const std::optional<std::uint64_t> rename_seed : {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(11)}) {
    testing_support::HuntOptions options;
    options.rename_seed = rename_seed;
    const testing_support::Hunt hunt = testing_support::hunt_scenario(healthy(), options);
    if (loses_updates(recipe())) {
      EXPECT_EQ(hunt.analysis.verdict.status, VerdictStatus::kWarning);
      for (const Finding& finding : hunt.analysis.findings) {
        EXPECT_TRUE(finding.cls == FindingClass::kUpdateLoss || finding.severity == Severity::kInfo) << finding.title;
      }
      continue;
    }
    const std::string status(verdict_status_name(hunt.analysis.verdict.status));
    EXPECT_TRUE(status == "clean" || status == "calibrating") << hunt.analysis.verdict.headline;
    for (const Finding& finding : hunt.analysis.findings) {
      EXPECT_EQ(severity_name(finding.severity), "info") << finding.title;
    }
  }
}

TEST_P(Recipe, trains_the_same_bytes_unwatched_and_watched) {
  const auto bytes_after = [](engine::Trainer& trainer) {
    for (int i = 0; i < 200; ++i) trainer.step();
    return testing_support::bytes_of(trainer);
  };
  const auto plain = bytes_after(*run_of(recipe(), {}).trainer);
  const testing_support::TempDir dir;
  RecorderOptions options;
  options.run_dir = dir.path();
  auto recorder = Recorder::open(options, RunInfo{});
  ASSERT_TRUE(recorder.is_ok()) << recorder.status().message();
  const auto run = run_of(recipe(), {});
  hooks::TrainerWatch watch(*run.trainer, **recorder);
  EXPECT_TRUE(bytes_after(*run.trainer) == plain);
}

}  // namespace
}  // namespace nanhunt
