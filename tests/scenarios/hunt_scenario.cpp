// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/hunt_scenario.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>

#include "hooks/engine/engine_hooks.h"

namespace nanhunt::testing_support {
namespace {

std::string fresh_run_dir(const std::string& name) {
  static std::atomic<int> counter{0};
  const auto dir = std::filesystem::path(testing::TempDir()) /
                   ("nanhunt-" + name + "-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
  std::filesystem::remove_all(dir);
  return dir.string();
}

void require(const Status& status) {
  if (!status) throw std::runtime_error(status.message());
}

}  // namespace

std::string Hunt::renamed_path(const std::string& path) const {
  for (const auto& [from, to] : renamed) {
    if (from == path) return to;
  }
  return path;
}

Hunt hunt_scenario(const scenarios::Scenario& scenario, const HuntOptions& options) {
  Hunt hunt;
  hunt.run_dir = fresh_run_dir(scenario.name);
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = "ops";
  info.scenario = scenario.name;
  RecorderOptions recorder_options;
  recorder_options.run_dir = hunt.run_dir;
  auto recorder = Recorder::open(recorder_options, info);
  require(recorder.status());

  scenarios::ScenarioConfig config;
  config.rename_seed = options.rename_seed;
  const std::uint32_t steps = options.steps != 0 ? options.steps : scenario.steps;
  {
    hooks::EngineWatch watch(**recorder);
    scenarios::ScenarioRun run = scenario.make(config);
    hunt.renamed = run.renamed;
    for (std::uint32_t i = 0; i < steps; ++i) run.trainer->step();
  }
  if (options.verify_fixes) {
    auto replay = hooks::make_engine_replay(
        [&](const std::string& fix) {
          scenarios::ScenarioConfig fixed = config;
          fixed.fix = fix;
          return std::move(scenario.make(fixed).trainer);
        },
        scenario.fixes);
    require(hunt::hunt_run(*replay, **recorder).status());
  }
  require((*recorder)->close());

  auto analysis = analyze_run(hunt.run_dir);
  require(analysis.status());
  hunt.analysis = std::move(*analysis);
  std::filesystem::remove_all(hunt.run_dir);
  return hunt;
}

}  // namespace nanhunt::testing_support
