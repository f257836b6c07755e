// SPDX-License-Identifier: Apache-2.0
// What watching costs: the same training step unwatched and at level `ops`, interleaved, with an A/A control.
// Counters: ratio = median of pairwise watched / unwatched; control = median of unwatched / unwatched.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>

#include "hooks/engine/engine_hooks.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt {
namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double seconds_of_step(engine::Trainer& trainer) {
  const auto start = std::chrono::steady_clock::now();
  trainer.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void watched_step(benchmark::State& state, const char* scenario_name, bool check_inputs = true) {
  const auto& scenario = *scenarios::find_scenario(scenario_name);
  auto plain = scenario.make({}).trainer;
  auto control = scenario.make({}).trainer;
  auto watched = scenario.make({}).trainer;
  const auto dir = std::filesystem::temp_directory_path() / "nanhunt-watch-bench";
  std::filesystem::remove_all(dir);
  RecorderOptions options;
  options.run_dir = dir.string();
  options.check_inputs = check_inputs;
  auto recorder = Recorder::open(options, RunInfo{});
  if (!recorder) {
    state.SkipWithError(recorder.status().message().c_str());
    return;
  }
  std::vector<double> ratios, controls, plain_seconds;
  for (auto _ : state) {
    const double a = seconds_of_step(*plain);
    double b = 0;
    {
      hooks::EngineWatch watch(**recorder);
      b = seconds_of_step(*watched);
    }
    const double c = seconds_of_step(*control);
    ratios.push_back(b / a);
    controls.push_back(c / a);
    plain_seconds.push_back(a);
    state.SetIterationTime(b);
  }
  const double ops = static_cast<double>((*recorder)->counters().ops) / static_cast<double>(ratios.size());
  if (!(*recorder)->close()) state.SkipWithError("the trace could not be written");
  state.counters["ratio"] = median(ratios);
  state.counters["control"] = median(controls);
  state.counters["plain_us"] = median(plain_seconds) * 1e6;
  state.counters["ops_per_step"] = ops;
  state.counters["us_per_op"] = (median(ratios) - 1) * median(plain_seconds) * 1e6 / ops;
  std::filesystem::remove_all(dir);
}

BENCHMARK_CAPTURE(watched_step, digits_mlp_fp16_adam_for_loop, "adam-eps-fixed")->UseManualTime()->Iterations(400);
BENCHMARK_CAPTURE(watched_step, digits_mlp_fp32, "sqrt-backward-fixed")->UseManualTime()->Iterations(400);
BENCHMARK_CAPTURE(watched_step, digits_mlp_fp16_unchecked, "adam-eps-fixed", false)->UseManualTime()->Iterations(400);

}  // namespace
}  // namespace nanhunt
