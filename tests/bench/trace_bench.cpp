// SPDX-License-Identifier: Apache-2.0
// Size and speed of the trace against a naive dump of the same rows. Rows: training_rows.h; results: README.md.
//
// A row is one op record with its inputs, scalars and one output value with its statistics. The naive dump
// copies each into a packed fixed struct of the same fields and writes 4096 of them with one write().
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "nanhunt/trace.h"
#include "tests/bench/training_rows.h"

namespace nanhunt::bench {
namespace {

// A recorder and its writer pass a few batches to and fro; so few distinct ones are written here, many times over.
// Chunks share nothing: repeating batches makes neither them nor the naive dump smaller.
constexpr std::size_t kDistinctRows = 4 * 2048;
constexpr int kTimes = 30;
constexpr std::size_t kRows = kTimes * kDistinctRows;
constexpr std::size_t kNaiveRows = 4096;

// Room for three inputs and two scalars, which is the most an op of these rows has.
struct [[gnu::packed]] NaiveRow {
  std::uint64_t seq;
  std::uint32_t step, micro_batch, module, op, call_site;
  std::uint8_t phase, compute_dtype, input_count, scalar_count;
  std::array<std::uint64_t, 3> inputs;
  std::array<std::uint32_t, 3> slots;
  std::array<std::uint8_t, 3> roles;
  std::array<std::uint32_t, 2> scalar_names;
  std::array<double, 2> scalars;
  std::uint64_t value, storage, base;
  std::int64_t offset;
  std::uint32_t version, layout;
  std::uint8_t has_stats, level, any_nonfinite;
  std::int64_t numel, first_nonfinite, nan, pos_inf, neg_inf, zero, subnormal, flushed;
  double amax, amin_nonzero, min, max, sum, sum_sq;
};
static_assert(sizeof(NaiveRow) >= 112);

NaiveRow naive_row(const RecordBatch& batch, const OpRecord& op, const ValueRecord& value) {
  NaiveRow row{};
  row.seq = op.seq;
  row.step = op.step;
  row.micro_batch = op.micro_batch;
  row.module = op.module;
  row.op = op.op;
  row.call_site = op.call_site;
  row.phase = static_cast<std::uint8_t>(op.phase);
  row.compute_dtype = static_cast<std::uint8_t>(op.compute_dtype);
  row.input_count = static_cast<std::uint8_t>(op.input_count);
  row.scalar_count = static_cast<std::uint8_t>(op.scalar_count);
  for (std::uint32_t i = 0; i < op.input_count; ++i) {
    const OpArg& input = batch.inputs[op.first_input + i];
    row.inputs[i] = input.value;
    row.slots[i] = input.slot;
    row.roles[i] = static_cast<std::uint8_t>(input.role);
  }
  for (std::uint32_t i = 0; i < op.scalar_count; ++i) {
    row.scalar_names[i] = batch.scalars[op.first_scalar + i].name;
    row.scalars[i] = batch.scalars[op.first_scalar + i].value;
  }
  row.value = value.id;
  row.storage = value.storage;
  row.base = value.base;
  row.offset = value.offset;
  row.version = value.version;
  row.layout = value.layout;
  row.has_stats = value.has_stats ? 1 : 0;
  row.flushed = value.flushed;
  const TensorStats& stats = value.stats;
  row.level = static_cast<std::uint8_t>(stats.level);
  row.any_nonfinite = stats.any_nonfinite ? 1 : 0;
  row.numel = stats.numel;
  row.first_nonfinite = stats.first_nonfinite;
  row.nan = stats.nan;
  row.pos_inf = stats.pos_inf;
  row.neg_inf = stats.neg_inf;
  row.zero = stats.zero;
  row.subnormal = stats.subnormal;
  row.amax = stats.amax;
  row.amin_nonzero = stats.amin_nonzero;
  row.min = stats.min;
  row.max = stats.max;
  row.sum = stats.sum;
  row.sum_sq = stats.sum_sq;
  return row;
}

// Made once per kind; `ops` ops a batch, the recorder's size being 2048.
const std::vector<RecordBatch>& batches(bool marks, std::size_t ops) {
  static std::map<std::pair<bool, std::size_t>, std::vector<RecordBatch>> made;
  auto& found = made[{marks, ops}];
  if (found.empty()) {
    TrainingRows rows(/*seed=*/20261121, marks);
    for (std::size_t done = 0; done < kDistinctRows; done += ops) found.push_back(rows.next(ops));
  }
  return found;
}

class ScopedFolder {
 public:
  ScopedFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "nanhunt-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~ScopedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScopedFolder(const ScopedFolder&) = delete;
  ScopedFolder& operator=(const ScopedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void report(benchmark::State& state, std::uint64_t bytes) {
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * kRows));
  state.counters["bytes_per_row"] = static_cast<double>(bytes) / kRows;
}

std::string write_trace(const std::string& run, const std::vector<RecordBatch>& all, std::uint64_t& bytes) {
  auto writer = TraceWriter::create(run, RunInfo{});
  if (!writer) std::abort();
  for (int time = 0; time < kTimes; ++time) {
    for (const RecordBatch& batch : all) {
      if (!(*writer)->write(batch)) std::abort();
    }
  }
  if (!(*writer)->close()) std::abort();
  bytes = (*writer)->bytes_written();
  return (*writer)->attempt_dir();
}

// Arguments: 1 if marks, releases, steps and sample ids are written too; ops in a batch.
void trace_write(benchmark::State& state) {
  const auto& all = batches(state.range(0) != 0, static_cast<std::size_t>(state.range(1)));
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto folder = std::make_unique<ScopedFolder>();
    state.ResumeTiming();
    write_trace(folder->path(), all, bytes);
    state.PauseTiming();
    folder.reset();
    state.ResumeTiming();
  }
  report(state, bytes);
}

void trace_read(benchmark::State& state) {
  const auto& all = batches(state.range(0) != 0, static_cast<std::size_t>(state.range(1)));
  ScopedFolder folder;
  std::uint64_t bytes = 0;
  AttemptTrace attempt;
  attempt.dir = write_trace(folder.path(), all, bytes);
  for (auto _ : state) {
    std::uint64_t ops = 0;
    TraceHealth health;
    if (!read_attempt(
            attempt, [&](const RecordBatch& batch) { ops += batch.ops.size(); }, health) ||
        ops != kRows) {
      state.SkipWithError("the trace did not come back whole");
    }
  }
  report(state, bytes);
}

void naive_write(benchmark::State& state) {
  const auto& all = batches(false, static_cast<std::size_t>(state.range(0)));
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    state.PauseTiming();
    auto folder = std::make_unique<ScopedFolder>();
    state.ResumeTiming();
    const int fd = ::open((folder->path() + "/rows").c_str(), O_CREAT | O_WRONLY | O_EXCL, 0644);
    bytes = 0;
    std::vector<NaiveRow> rows;
    rows.reserve(kNaiveRows);
    const auto flush = [&] {
      const std::size_t size = rows.size() * sizeof(NaiveRow);
      if (::write(fd, rows.data(), size) != static_cast<ssize_t>(size)) std::abort();
      bytes += size;
      rows.clear();
    };
    const auto dump = [&](const RecordBatch& batch) {
      std::size_t value = 0;
      for (const OpRecord& op : batch.ops) {
        while (batch.values[value].id != batch.outputs[op.first_output].value) ++value;
        rows.push_back(naive_row(batch, op, batch.values[value]));
        if (rows.size() == kNaiveRows) flush();
      }
    };
    for (int time = 0; time < kTimes; ++time) {
      for (const RecordBatch& batch : all) dump(batch);
    }
    flush();
    ::close(fd);
    state.PauseTiming();
    folder.reset();
    state.ResumeTiming();
  }
  report(state, bytes);
}

BENCHMARK(naive_write)->Arg(2048)->ArgNames({"batch"})->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(trace_write)
    ->Args({0, 2048})
    ->Args({0, 4096})
    ->Args({1, 2048})
    ->ArgNames({"marks", "batch"})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(trace_read)
    ->Args({0, 2048})
    ->Args({1, 2048})
    ->ArgNames({"marks", "batch"})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace nanhunt::bench
