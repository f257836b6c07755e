// SPDX-License-Identifier: Apache-2.0
#include "tests/scenarios/hunt_scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/build.h"

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

namespace {

// One rank of a run, or all of it: what is left when it has trained.
struct Rank {
  std::unique_ptr<Recorder> recorder;
  std::vector<std::pair<std::string, std::string>> renamed;
};

Rank train(const scenarios::Scenario& scenario, const HuntOptions& options, scenarios::ScenarioConfig config,
           const std::string& run_dir) {
  RunInfo info;
  info.framework = "nanhunt-engine";
  info.device = engine::device_details(options.device);
  info.level = "ops";
  info.scenario = scenario.name;
  if (config.ranks != nullptr) {
    info.rank = config.ranks->rank();
    info.world_size = config.ranks->size();
  }
  RecorderOptions recorder_options;
  recorder_options.run_dir = run_dir;
  auto recorder = Recorder::open(recorder_options, info);
  require(recorder.status());
  const std::uint32_t steps = options.steps != 0 ? options.steps : scenario.steps;
  scenarios::ScenarioRun run = scenario.make(config);
  hooks::TrainerWatch watch(*run.trainer, **recorder, {.device_stats = options.device_stats});
  for (std::uint32_t i = 0; i < steps; ++i) run.trainer->step();
  return {std::move(*recorder), run.renamed};
}

}  // namespace

Hunt hunt_scenario(const scenarios::Scenario& scenario, const HuntOptions& options) {
  Hunt hunt;
  const TempDir run_dir;
  scenarios::ScenarioConfig config;
  config.rename_seed = options.rename_seed;
  config.device = options.device;
  std::vector<Rank> ranks(scenario.ranks);
  if (scenario.ranks == 1) {
    ranks[0] = train(scenario, options, config, run_dir.path());
  } else {
    engine::run_ranks(scenario.ranks, [&](const std::shared_ptr<engine::RankGroup>& group) {
      scenarios::ScenarioConfig its = config;
      its.ranks = group;
      ranks[group->rank()] = train(scenario, options, its, run_dir.path());
    });
  }
  hunt.renamed = ranks[0].renamed;
  if (options.verify_fixes || options.probe) {
    for (const Rank& rank : ranks) require(rank.recorder->flush());
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      auto replay = hooks::make_engine_replay(
          [&](const std::string& fix) {
            scenarios::ScenarioConfig fixed = config;
            fixed.fix = fix;
            if (scenario.ranks > 1) fixed = scenarios::with_others(scenario.make, fixed, rank, scenario.ranks);
            return std::move(scenario.make(fixed).trainer);
          },
          scenario.fixes);
      const hunt::HuntOptions hunting{
          .run_dir = run_dir.path(), .rank = rank, .try_fixes = options.verify_fixes, .captures = {}};
      require(hunt::hunt_run(*replay, *ranks[rank].recorder, hunting).status());
    }
  }
  for (const Rank& rank : ranks) require(rank.recorder->close());
  hunt.counters = ranks[scenario.expected.rank].recorder->counters();

  auto analysis = analyze_run(run_dir.path());
  require(analysis.status());
  hunt.analysis = std::move(*analysis);
  return hunt;
}

void expect_named(const Hunt& hunt, const scenarios::Expectation& expected) {
  ASSERT_FALSE(hunt.analysis.findings.empty()) << hunt.analysis.verdict.headline;
  const Finding& finding = hunt.analysis.findings.front();
  EXPECT_EQ(verdict_status_name(hunt.analysis.verdict.status), verdict_status_name(expected.status));
  EXPECT_EQ(hunt.analysis.verdict.origin, finding.id);
  EXPECT_EQ(finding_class_name(finding.cls), finding_class_name(expected.cls)) << finding.title;
  EXPECT_EQ(phase_name(finding.place.phase), phase_name(expected.phase));
  EXPECT_EQ(finding.place.step, expected.step);
  EXPECT_EQ(finding.rank, expected.rank);
  EXPECT_EQ(finding.place.op, expected.op);
  const auto module = expected.module ? std::optional(hunt.renamed_path(*expected.module)) : std::nullopt;
  EXPECT_EQ(finding.place.module, module);
  for (std::int64_t sample : expected.samples) {
    EXPECT_NE(std::find(finding.samples.begin(), finding.samples.end(), sample), finding.samples.end())
        << "sample " << sample << " is not named";
  }
}

}  // namespace nanhunt::testing_support
