// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/hunt_scenario.h"

#include <stdexcept>

#include "hooks/engine/engine_hooks.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::testing_support {
namespace {

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
  const TempDir run_dir;
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = "cpu";
  info.level = options.level;
  info.scenario = scenario.name;
  RecorderOptions recorder_options;
  recorder_options.run_dir = run_dir.path();
  auto recorder = Recorder::open(recorder_options, info);
  require(recorder.status());

  scenarios::ScenarioConfig config;
  config.rename_seed = options.rename_seed;
  const std::uint32_t steps = options.steps != 0 ? options.steps : scenario.steps;
  {
    scenarios::ScenarioRun run = scenario.make(config);
    hunt.renamed = run.renamed;
    const auto level = hooks::parse_watch_level(options.level);
    if (!level) throw std::runtime_error("no level '" + options.level + "'");
    hooks::TrainerWatch watch(*run.trainer, **recorder, {.level = *level});
    for (std::uint32_t i = 0; i < steps; ++i) run.trainer->step();
  }
  if (options.verify_fixes || options.probe) {
    auto replay = hooks::make_engine_replay(
        [&](const std::string& fix) {
          scenarios::ScenarioConfig fixed = config;
          fixed.fix = fix;
          return std::move(scenario.make(fixed).trainer);
        },
        scenario.fixes);
    require(hunt::hunt_run(*replay, **recorder, {.try_fixes = options.verify_fixes, .captures = {}}).status());
  }
  require((*recorder)->close());

  auto analysis = analyze_run(run_dir.path());
  require(analysis.status());
  hunt.analysis = std::move(*analysis);
  return hunt;
}

}  // namespace nanhunt::testing_support
