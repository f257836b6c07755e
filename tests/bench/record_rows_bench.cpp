// SPDX-License-Identifier: Apache-2.0
// What one op costs the run's thread when an adapter tells it through the C interface: three inputs, one output, tiny
// tensors, inputs trusted, a release for each output. Time is CPU time of the calling thread; the writer has its own.
#include <benchmark/benchmark.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "nanhunt/c_adapter.h"

namespace {

constexpr std::size_t kAlive = 64;  // outputs between their op and their release

class Run {
 public:
  Run() {
    std::string name = (std::filesystem::temp_directory_path() / "nanhunt-bench-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    nanhunt_recorder_options options{};
    options.struct_size = sizeof options;
    options.run_dir = folder_.c_str();
    options.trust_inputs = 1;
    if (nanhunt_recorder_open(&options, &recorder) != NANHUNT_OK) std::abort();
    const std::array<std::int64_t, 2> sizes = {2, 2};
    layout = nanhunt_intern_layout(recorder, NANHUNT_F32, 2, sizes.data(), nullptr);
    const std::array<const char*, 3> slots = {"self", "mat1", "mat2"};
    const char* const out = "out";
    const std::array<const char*, 2> scalars = {"beta", "alpha"};
    const nanhunt_call told = {sizeof told, NANHUNT_F32, "addmm", slots.data(), nullptr, 3,
                               &out,        1,           scalars.data(), 2};
    call = nanhunt_intern_call(recorder, &told);
    module = nanhunt_intern_text(recorder, "encoder.layers.3.linear1");
    site = nanhunt_intern_text(recorder, "train.py:118");
  }
  ~Run() {
    nanhunt_recorder_close(recorder);
    std::filesystem::remove_all(folder_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  nanhunt_recorder* recorder = nullptr;
  std::int64_t layout = 0, call = 0, module = 0, site = 0;
  std::array<float, 4> data = {1, 2, 3, 4};

 private:
  std::string folder_;
};

// Argument: op rows in one call.
void told_by_rows(benchmark::State& state) {
  Run run;
  const auto rows = static_cast<std::size_t>(state.range(0));
  std::vector<std::int64_t> words;
  std::int64_t next = 100;
  const auto data = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(run.data.data()));
  for (auto _ : state) {
    words.clear();
    for (std::size_t i = 0; i < rows; ++i, ++next) {
      const std::int64_t before = next > 100 ? next - 1 : 3;
      words.insert(words.end(), {NANHUNT_ROW_OP, run.call, next / 1000, 0, NANHUNT_PHASE_FORWARD, run.module, run.site,
                                 data, 1 << 24, 0, run.layout, data, before << 24, 0, run.layout, data, 2 << 24, 0,
                                 run.layout, data, next << 24, 0, run.layout, 0, 0});
      if (next >= 100 + static_cast<std::int64_t>(kAlive)) {
        words.insert(words.end(), {NANHUNT_ROW_RELEASE, next - static_cast<std::int64_t>(kAlive)});
      }
    }
    if (nanhunt_record_rows(run.recorder, words.data(), words.size()) != NANHUNT_OK) std::abort();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(told_by_rows)->Arg(1)->Arg(16);

void told_by_structs(benchmark::State& state) {
  Run run;
  const std::array<std::int64_t, 2> sizes = {2, 2}, strides = {2, 1};
  const auto value_of = [&](std::uint64_t storage) {
    return nanhunt_value{run.data.data(), NANHUNT_F32, 2, sizes.data(), strides.data(), storage, 0, 0};
  };
  std::uint64_t next = 100;
  for (auto _ : state) {
    const std::array<nanhunt_input, 3> in = {{{"self", value_of(1), NANHUNT_READ},
                                              {"mat1", value_of(next > 100 ? next - 1 : 3), NANHUNT_READ},
                                              {"mat2", value_of(2), NANHUNT_READ}}};
    const nanhunt_output out = {"out", value_of(next)};
    const std::array<nanhunt_scalar, 2> scalars = {{{"beta", 0}, {"alpha", 0}}};
    const nanhunt_op op = {sizeof op, static_cast<std::uint32_t>(next / 1000), 0, NANHUNT_PHASE_FORWARD,
                           "encoder.layers.3.linear1", "addmm", "train.py:118", NANHUNT_F32, in.data(), in.size(),
                           &out, 1, scalars.data(), scalars.size()};
    if (nanhunt_record_op(run.recorder, &op) != NANHUNT_OK) std::abort();
    if (next >= 100 + kAlive) nanhunt_record_release(run.recorder, next - kAlive);
    ++next;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(told_by_structs);

// The part of it that is reading the output.
void reading_the_output(benchmark::State& state) {
  Run run;
  const std::array<std::int64_t, 2> sizes = {2, 2}, strides = {2, 1};
  const nanhunt_value value = {run.data.data(), NANHUNT_F32, 2, sizes.data(), strides.data(), 0, 0, 0};
  nanhunt_stats stats{};
  stats.struct_size = sizeof stats;
  for (auto _ : state) {
    if (nanhunt_tensor_stats(&value, &stats) != NANHUNT_OK) std::abort();
  }
}
BENCHMARK(reading_the_output);

}  // namespace
