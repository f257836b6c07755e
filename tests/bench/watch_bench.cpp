// SPDX-License-Identifier: Apache-2.0
// What watching costs: the same training step unwatched and watched, interleaved, with an A/A control.
// Counters: ratio = median of pairwise watched / unwatched; control = median of unwatched / unwatched.
#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/data.h"
#include "nanhunt/engine/models.h"
#include "nanhunt/engine/ops.h"

namespace nanhunt {
namespace {

using TrainerMaker = std::unique_ptr<engine::Trainer> (*)();

// fp32 weights under fp16 autocast, a dynamic loss scale and a plain optimizer.
std::unique_ptr<engine::Trainer> make_trainer(std::unique_ptr<engine::Module> model, engine::BatchSource batches,
                                              engine::LossFunction loss) {
  auto optimizer = engine::make_optimizer(model->named_parameters(), {.algorithm = "adamw", .lr = 1e-3,
                                                                      .weight_decay = 0.01});
  engine::TrainerOptions options;
  options.autocast = engine::AutocastOptions{};
  options.scaler = engine::GradScalerOptions{.init_scale = 1024};  // no step is skipped
  return std::make_unique<engine::Trainer>(std::move(model), std::move(optimizer), std::move(batches), std::move(loss),
                                           options);
}

engine::Tensor digit_loss(const engine::Tensor& output, const engine::Batch& batch) {
  return engine::cross_entropy(output, batch.targets);
}

std::unique_ptr<engine::Trainer> make_mlp() {
  return make_trainer(std::make_unique<engine::Mlp>(), engine::digits_train_batches(64, 1, DType::kF32), digit_loss);
}

std::unique_ptr<engine::Trainer> make_cnn() {
  return make_trainer(std::make_unique<engine::Cnn>(), engine::digits_train_batches(64, 1, DType::kF32), digit_loss);
}

std::unique_ptr<engine::Trainer> make_gpt() {
  engine::GptOptions options{.block = {}};
  options.block.dims = 128;
  options.block.heads = 4;
  options.block.context = 128;
  return make_trainer(std::make_unique<engine::Gpt>(options), engine::text_train_batches(8, 128, 1),
                      engine::next_token_loss);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// By the processor's clock of this thread: other programs on the machine do not count, the recorder's writer neither.
double seconds_of_step(engine::Trainer& trainer) {
  timespec before{}, after{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  trainer.step();
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  return static_cast<double>(after.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
}

double seconds_by_clock(engine::Trainer& trainer) {
  const auto start = std::chrono::steady_clock::now();
  trainer.step();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void watched_step(benchmark::State& state, TrainerMaker make, bool watches) {
  auto plain = make(), control = make(), watched = make();
  const auto dir = std::filesystem::temp_directory_path() / "nanhunt-watch-bench";
  std::filesystem::remove_all(dir);
  RecorderOptions options;
  options.run_dir = dir.string();
  auto recorder = Recorder::open(options, RunInfo{});
  if (!recorder) {
    state.SkipWithError(recorder.status().message().c_str());
    return;
  }
  std::optional<hooks::TrainerWatch> watch;  // it hears all of the thread, so it comes and goes
  for (auto* trainer : {plain.get(), control.get(), watched.get()}) trainer->step();
  const auto timed = state.range(0) == 0 ? seconds_of_step : seconds_by_clock;
  std::vector<double> ratios, controls, plain_seconds;
  int turn = 0;
  for (auto _ : state) {
    double a = 0, b = 0, c = 0;
    const auto run_watched = [&] {
      if (watches) watch.emplace(*watched, **recorder);
      b = timed(*watched);
      watch.reset();
    };
    // In turns first, second and last, so that what comes before does not favour one of them.
    const std::function<void()> runs[] = {[&] { a = timed(*plain); }, run_watched, [&] { c = timed(*control); }};
    for (int i = 0; i < 3; ++i) runs[(turn + i) % 3]();
    ++turn;
    ratios.push_back(b / a);
    controls.push_back(c / a);
    plain_seconds.push_back(a);
    state.SetIterationTime(b);
  }
  watch.reset();
  const auto ops = static_cast<double>((*recorder)->counters().ops);
  if (!(*recorder)->close()) state.SkipWithError("the trace could not be written");
  state.counters["ratio"] = median(ratios);
  state.counters["control"] = median(controls);
  state.counters["plain_us"] = median(plain_seconds) * 1e6;
  state.counters["ops_per_step"] = ops / static_cast<double>(controls.size());
  std::filesystem::remove_all(dir);
}

#define NANHUNT_WATCH_BENCH(model, pairs)                                                                              \
  BENCHMARK_CAPTURE(watched_step, model##_off, make_##model, false)                                                    \
      ->UseManualTime()->Iterations(pairs)->Arg(0);                                                                    \
  BENCHMARK_CAPTURE(watched_step, model##_ops, make_##model, true)                                                     \
      ->UseManualTime()->Iterations(pairs)->Arg(0)

NANHUNT_WATCH_BENCH(cnn, 400);
NANHUNT_WATCH_BENCH(gpt, 100);
NANHUNT_WATCH_BENCH(mlp, 1000);

}  // namespace
}  // namespace nanhunt
