// SPDX-License-Identifier: Apache-2.0
// Bundled training runs with a planted fault, and their repaired twins NAME-fixed. `expected` is the
// contract: tests hold `nanhunt check` to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanhunt/analyzer.h"
#include "nanhunt/engine/trainer.h"
#include "nanhunt/engine/workloads.h"
#include "src/hunt/hunt.h"

namespace nanhunt::scenarios {

struct Expectation {
  VerdictStatus status = VerdictStatus::kClean;
  // Of the headline finding; ignored when status is clean.
  FindingClass cls = FindingClass::kUnexplained;
  Phase phase = Phase::kForward;
  std::optional<std::string> module;  // before renaming
  std::optional<std::string> op;      // null: no single op (exploding)
  std::uint32_t step = 0;
  std::vector<std::int64_t> samples;  // must be among the finding's samples
  bool sinks_stay_finite = false;     // the harm is done without a bad loss, gradient, parameter or state
  std::uint32_t rank = 0;             // where it begins
};

struct ScenarioConfig {
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> rename_seed;  // randomise every module and parameter name
  std::string fix;                           // id of one of Scenario::fixes, "" for the scenario as it is
  engine::Device device = {};                // where it trains
  bool anomaly = false;                      // backward stops at the first NaN, as PyTorch's anomaly mode does
  std::string scaler = {};                   // a name of engine::named_scalers(), "" for the scenario's own
  // Train as one of these ranks, on its rows of each batch. None: alone; a scenario of several ranks as the one where its
  // fault begins, with the others in this process (engine::with_companions).
  std::shared_ptr<engine::RankGroup> ranks = {};
  // Train in this recipe instead of the scenario's own: the model begins in fp32, with a bare optimizer.
  const engine::NamedRecipe* recipe = nullptr;
  // Put the fp32 model, its bare optimizer, batches and loss here, and make no trainer.
  engine::TrainingParts* parts = nullptr;
  bool bare() const { return recipe != nullptr || parts != nullptr; }
};

struct ScenarioRun {
  std::unique_ptr<engine::Trainer> trainer;
  std::vector<std::pair<std::string, std::string>> renamed;  // old path -> new path; empty without rename_seed
};

struct Scenario {
  std::string name;
  std::string summary;      // one sentence for --list
  std::string recipe = {};  // of mixed precision, as its group in registry.cpp has it
  std::uint32_t steps = 0;  // default length
  std::vector<std::string> dtypes;
  std::uint32_t ranks = 1;  // that it needs
  bool only_own_recipe = false;  // what is wrong in it stands in its recipe
  Expectation expected;
  std::vector<hunt::Fix> fixes;  // tried after a failure; empty for twins
  std::function<ScenarioRun(const ScenarioConfig&)> make;
};

std::span<const Scenario> all_scenarios();
const Scenario* find_scenario(std::string_view name);  // nullptr: none

// Why it trains in no recipe but its own; empty: it trains in any. Several ranks, or several losses, are part of it.
std::string why_in_its_own_recipe(const Scenario& scenario);
// Training it in fp32 and in any recipe, its batches as they are or cut to a size that divides theirs. The scenario
// must be one that trains in any recipe.
engine::Workload workload_of(const Scenario& scenario);

}  // namespace nanhunt::scenarios
