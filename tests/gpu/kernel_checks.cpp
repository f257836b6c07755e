// SPDX-License-Identifier: Apache-2.0
// The statistics kernels on a GPU against the CPU's: formats, edges, lengths, alignments, views, tables, sizes, graphs,
// and the recorder. Every check is a row.
#include "tests/gpu/checks.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/cpu/tensor_stats_block.h"
#include "kernels/device_recorder.h"
#include "tests/gpu/device_tensors.h"

namespace nanhunt::gpu {
namespace {

using Dims = std::vector<std::int64_t>;

// Counts comparisons and keeps the first that failed.
struct Tally {
  std::int64_t compared = 0, wrong = 0;
  std::string first;

  void compare(const TensorStats& got, const TensorStats& want, const std::string& what) {
    const std::string difference = testing_support::disagreement(got, want);
    add(difference.empty(), what + ":" + difference);
  }
  void add(bool right, const std::string& what) {
    ++compared;
    if (!right && wrong++ == 0) first = what;
  }
  std::string told() const {
    return std::to_string(compared) + " compared" +
           (wrong == 0 ? "" : ", " + std::to_string(wrong) + " wrong; first: " + first);
  }
};

void finish(Rows& rows, const std::string& name, const Tally& tally) {
  rows.check(name, tally.wrong == 0 && tally.compared > 0, tally.told());
}

std::string named(DType dtype, std::size_t count, StatsLevel level) {
  return std::string(dtype_name(dtype)) + " of " + std::to_string(count) + " level " + level_name(level);
}

void compare_all_levels(Bench& bench, OwnedTensor& tensor, std::size_t misalignment, Tally& tally) {
  const TensorView host = tensor.view();
  unsigned char* memory = bench.upload(tensor, misalignment);
  const TensorView view{memory + misalignment, host.dtype, host.sizes, host.strides};
  for (const StatsLevel level : kLevels) {
    const TensorStats got = bench.run(view, level);
    const std::string what = named(host.dtype, tensor.count(), level) + " at " + std::to_string(misalignment);
    if (!bench.last_error) {
      tally.add(false, what + ": " + bench.last_error.message());
      continue;
    }
    tally.compare(got, compute_stats(host, level), what);
  }
  bench.session->release(memory);
}

void check_formats(Bench& bench, Rows& rows, bool quick) {
  for (const DType dtype : kAllTypes) {
    Tally tally;
    if (is_floating(dtype) && dtype_size(dtype) <= 2) {  // every code there is
      OwnedTensor codes(dtype, std::size_t{1} << 8 * dtype_size(dtype));
      for (std::size_t i = 0; i < codes.count(); ++i) codes.set_code(i, i);
      compare_all_levels(bench, codes, 0, tally);
    }
    if (is_floating(dtype)) {  // what changes at a limit, from both sides
      const kernels::FormatCodes& f = kernels::format_codes(dtype);
      OwnedTensor edges(dtype, 2 * 3 * (kernels::kWhatIfThresholds + 3));
      std::size_t i = 0;
      const auto add = [&](std::uint64_t limit) {
        for (const std::uint64_t near : {limit - 1, limit, limit + 1}) {
          edges.set_code(i++, near & (f.sign - 1));
          edges.set_code(i++, near | f.sign);
        }
      };
      for (const std::uint64_t limit : f.thresholds) add(limit);
      for (const std::uint64_t limit : {f.min_normal, f.first_nonfinite, f.first_nan}) add(limit);
      compare_all_levels(bench, edges, 0, tally);
    }
    std::uint64_t seed = 1;
    for (const Content content : {Content::kNormal, Content::kOdd, Content::kBits}) {
      for (const std::size_t count : {0u, 1u, 7u, 255u, 4097u, 100003u, 3000001u}) {
        if (quick && count > 200000) continue;
        OwnedTensor tensor = make_tensor(dtype, count, content, ++seed);
        compare_all_levels(bench, tensor, 0, tally);
      }
    }
    finish(rows, "format " + std::string(dtype_name(dtype)), tally);
  }
}

void check_lengths_and_alignments(Bench& bench, Rows& rows, bool quick) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN}) {
    Tally tally;
    for (std::size_t count = 0; count <= 4097; count += quick ? 411 : 17) {
      for (const std::size_t misalignment : {count % 16, count % 16 / dtype_size(dtype) * dtype_size(dtype)}) {
        OwnedTensor tensor = make_tensor(dtype, count, Content::kOdd, count);
        compare_all_levels(bench, tensor, misalignment, tally);
      }
    }
    finish(rows, "lengths and alignments of " + std::string(dtype_name(dtype)), tally);
  }
}

void check_views(Bench& bench, Rows& rows) {
  struct Case {
    Dims sizes, strides;
    std::int64_t offset;
  };
  const Case cases[] = {{{100, 200}, {1, 100}, 0},      {{50, 60}, {200, 3}, 7},     {{30, 20, 10}, {400, 10, 1}, 101},
                        {{2000}, {-1}, 1999},           {{7, 11, 13}, {-1300, 90, -7}, 10000},
                        {{4, 16, 16, 8}, {2048, 16, 1, 256}, 0}, {{5, 40, 3, 50}, {0, 50, 0, 1}, 11}, {{}, {}, 42}};
  Tally tally;
  for (const DType dtype : kAllTypes) {
    OwnedTensor tensor = make_tensor(dtype, 20000, Content::kOdd, 5);
    unsigned char* memory = bench.upload(tensor);
    for (const Case& c : cases) {
      const auto offset = static_cast<std::size_t>(c.offset);
      for (const StatsLevel level : kLevels) {
        const TensorView there{memory + offset * dtype_size(dtype), dtype, c.sizes, c.strides};
        const TensorStats got = bench.run(there, level);
        const TensorView here{tensor.at(offset), dtype, c.sizes, c.strides};
        tally.compare(got, compute_stats(here, level), named(dtype, static_cast<std::size_t>(here.numel()), level));
      }
    }
    bench.session->release(memory);
  }
  finish(rows, "strided, permuted, reversed and broadcast views", tally);
}

// Tensors of all formats in one launch; the same bits as alone.
void check_tables(Bench& bench, Rows& rows) {
  constexpr std::size_t kTensors = 1000;
  std::vector<OwnedTensor> tensors;
  std::vector<kernels::DeviceTensor> there;
  for (std::size_t i = 0; i < kTensors; ++i) {
    constexpr std::size_t kCounts[] = {0, 1, 300, 4096, 70000, 9, 20000};
    tensors.push_back(make_tensor(kAllTypes[i % 10], kCounts[i % 7], Content::kOdd, i));
    unsigned char* memory = bench.upload(tensors.back());
    there.push_back({memory, static_cast<std::int64_t>(tensors.back().count()), kAllTypes[i % 10],
                     static_cast<std::uint32_t>(i)});
  }
  for (const StatsLevel level : kLevels) {
    Tally tally;
    std::vector<TensorStats> from_parameters;
    for (const bool uploaded : {false, true}) {
      Status launched;
      const bool by_value = !uploaded && level <= StatsLevel::kSums;
      if (!by_value) {
        const auto set = bench.stats->upload(there);
        launched = set ? bench.stats->enqueue(**set, level, bench.target, bench.session->stream()) : set.status();
        if (launched) launched = bench.session->wait();
      } else {
        launched = bench.stats->enqueue(there, level, bench.target, bench.session->stream());
      }
      if (!launched) {
        tally.add(false, launched.message());
        break;
      }
      const std::vector<DeviceStatsRecord> records = bench.records(kTensors);
      for (std::size_t i = 0; i < kTensors; ++i) {
        const TensorStats got = bench.stats_of(i, records[i]);
        if (uploaded) {
          tally.add(got == from_parameters[i], "another result from a table in memory");
        } else {
          from_parameters.push_back(got);
          tally.compare(got, compute_stats(tensors[i].view(), level), "tensor " + std::to_string(i));
          if (i % 97 == 0) {
            const Dims sizes = {there[i].count};
            const Dims strides = {1};
            const auto before = bench.records(kTensors);
            tally.add(bench.run({there[i].data, there[i].dtype, sizes, strides}, level) == got, "another result alone");
            launched = bench.session->copy_in(bench.target.records, before.data(), kTensors * sizeof before[0]);
          }
        }
      }
    }
    finish(rows, "1000 tensors of mixed formats in one launch, level " + std::string(level_name(level)), tally);
  }
  for (const kernels::DeviceTensor& tensor : there) bench.session->release(const_cast<void*>(tensor.data));
}

// Memory that the device cannot read is refused in words; a kernel that read it would end CUDA for the whole process.
void check_foreign_memory(Bench& bench, Rows& rows) {
  OwnedTensor tensor = make_tensor(DType::kF32, 5000, Content::kNormal, 1);
  const TensorView host = tensor.view();
  Tally tally;
  bench.run(host, StatsLevel::kSums);
  tally.add(!bench.last_error, "a tensor of the host was taken");
  unsigned char* memory = bench.upload(tensor);
  const kernels::DeviceTensor mixed[] = {{memory, 5000, DType::kF32, 0}, {host.data, 5000, DType::kF32, 1}};
  tally.add(!bench.stats->enqueue(mixed, StatsLevel::kSums, bench.target, bench.session->stream()),
            "a mixed table was taken");
  tally.add(!bench.stats->upload(mixed), "a mixed set was taken");
  const TensorStats got = bench.run({memory, host.dtype, host.sizes, host.strides}, StatsLevel::kSums);
  tally.add(bench.last_error.is_ok(), bench.last_error.message());
  tally.compare(got, compute_stats(host, StatsLevel::kSums), "afterwards");
  bench.session->release(memory);
  finish(rows, "memory of the host is refused", tally);
}

void check_recorder(Bench& bench, Rows& rows) {
  std::mutex mutex;
  std::vector<kernels::DeviceRecord> got;
  kernels::DeviceRecorderOptions options;
  options.capacity = 256;
  auto recorder = kernels::DeviceRecorder::create(options, [&](const kernels::DeviceRecord& record) {
    const std::lock_guard lock(mutex);
    got.push_back(record);
  });
  if (!recorder) {
    rows.check("recorder", false, recorder.status().message());
    return;
  }
  OwnedTensor clean = make_tensor(DType::kF16, 5000, Content::kNormal, 1);
  OwnedTensor bad = make_tensor(DType::kF16, 5000, Content::kNormal, 2);
  bad.set(777, NAN);
  unsigned char* memory[] = {bench.upload(clean), bench.upload(bad)};
  DeviceStatsTarget target;
  target.recorder = recorder->get();
  constexpr int kSteps = 50;
  constexpr int kOps = 100;
  Tally tally;
  for (int step = 0; step < kSteps; ++step) {
    for (int op = 0; op < kOps; ++op) {
      const bool is_bad = op == 31;
      const kernels::DeviceTensor one[] = {
          {memory[is_bad ? 1 : 0], 5000, DType::kF16, static_cast<std::uint32_t>(step * kOps + op)}};
      const Status s = bench.stats->enqueue(one, StatsLevel::kSums, target, bench.session->stream());
      if (!s) tally.add(false, s.message());
    }
    static_cast<void>((*recorder)->advance_step(bench.session->stream()));
    static_cast<void>((*recorder)->copy_ring(bench.session->stream()));
  }
  const Status flushed = (*recorder)->flush();
  tally.add(flushed.is_ok(), flushed.message());
  const kernels::DeviceRecorderCounts counts = (*recorder)->counts();
  const std::lock_guard lock(mutex);
  std::set<std::uint32_t> seen;
  for (const kernels::DeviceRecord& record : got) {
    const std::uint32_t op = record.stats.tag % kOps;
    tally.add(record.step == record.stats.tag / kOps, "a wrong step");
    tally.add((record.stats.nan == 1) == (op == 31) && (record.stats.first == 777) == (op == 31), "a wrong record");
    tally.add(seen.insert(record.stats.tag).second, "a record came twice");
  }
  tally.add(counts.written == kSteps * kOps, "written " + std::to_string(counts.written));
  tally.add(counts.delivered + counts.lost_bulk == counts.written, "records unaccounted for");
  finish(rows, "recorder", tally);
  rows.check("recorder loses nothing where the ring is large enough", counts.lost_bulk == 0,
             std::to_string(counts.delivered) + " delivered, " + std::to_string(counts.lost_bulk) + " lost, " +
                 std::to_string(counts.flagged) + " early, " + std::to_string(counts.copies_skipped) +
                 " copies skipped");
  for (unsigned char* at : memory) bench.session->release(at);
}

}  // namespace

void run_kernel_checks(Rows& rows, bool quick) {
  auto bench = Bench::open(kernels::kTensorsInParameters, std::uint64_t{1} << 17, true);
  if (!bench) {
    rows.check("kernels", false, bench.status().message());
    return;
  }
  check_formats(**bench, rows, quick);
  check_lengths_and_alignments(**bench, rows, quick);
  check_views(**bench, rows);
  if (!quick) check_tables(**bench, rows);
  check_foreign_memory(**bench, rows);
  check_recorder(**bench, rows);
}

void run_large_checks(Rows& rows) {
  auto bench = Bench::open(1, std::uint64_t{1} << 17, true);
  if (!bench) {
    rows.check("more than 2^32 elements", false, bench.status().message());
    return;
  }
  struct Case {
    DType dtype;
    std::uint64_t one;  // the code of 1
    std::uint64_t nan;
  };
  for (const Case c : {Case{DType::kE4M3FN, 0x38, 0x7f}, Case{DType::kF16, 0x3c00, 0x7e00},
                       Case{DType::kF32, 0x3f800000, 0x7fc00000}}) {
    const std::uint64_t count = (std::uint64_t{1} << 32) + 1000003;
    const std::size_t size = dtype_size(c.dtype);
    const std::string name = "2^32 + 1000003 elements of " + std::string(dtype_name(c.dtype));
    DeviceSession& session = *(*bench)->session;
    if (session.free_memory() < count * size + (std::size_t{1} << 30)) {
      rows.skip(name, "not enough memory on the device");
      continue;
    }
    auto* memory = static_cast<unsigned char*>(session.allocate(count * size));
    if (memory == nullptr) {
      rows.skip(name, "not enough memory on the device");
      continue;
    }
    // Zeros, with 1 at four places and NaN at one, all but one of them beyond 2^32.
    Status s = session.fill(memory, 0, count * size);
    for (const std::uint64_t at :
         {std::uint64_t{5}, std::uint64_t{1} << 32, (std::uint64_t{1} << 32) + 4097, count - 1}) {
      if (s) s = session.copy_in(memory + at * size, &c.one, size);
    }
    const std::uint64_t nan_at = (std::uint64_t{1} << 32) + 99;
    if (s) s = session.copy_in(memory + nan_at * size, &c.nan, size);
    const Dims sizes = {static_cast<std::int64_t>(count)};
    const Dims strides = {1};
    Tally tally;
    tally.add(s.is_ok(), s.message());
    for (const StatsLevel level : kLevels) {
      const TensorStats got = (*bench)->run({memory, c.dtype, sizes, strides}, level);
      tally.add((*bench)->last_error.is_ok(), (*bench)->last_error.message());
      tally.add(got.numel == static_cast<std::int64_t>(count), "numel");
      tally.add(got.first_nonfinite == static_cast<std::int64_t>(nan_at),
                "first " + std::to_string(got.first_nonfinite));
      if (level >= StatsLevel::kCounts) {
        tally.add(got.nan == 1 && got.zero == static_cast<std::int64_t>(count) - 5, "counts");
      }
      if (level >= StatsLevel::kSums) tally.add(got.sum == 4 && got.sum_sq == 4, "sums");
      if (level >= StatsLevel::kHistogram) tally.add(got.histogram == std::vector<std::int64_t>{4}, "histogram");
    }
    finish(rows, name, tally);
    session.release(memory);
  }
}

// The recorder's thread asks for the end of copies all the time, the graph's own thread captures in the strictest mode,
// and a copy is asked for in the middle of it.
void check_capture_beside_copies(Bench& bench, Rows& rows) {
  DeviceSession& session = *bench.session;
  auto recorder = kernels::DeviceRecorder::create({}, [](const kernels::DeviceRecord&) {});
  constexpr std::size_t kBytes = std::size_t{512} << 20;  // long enough to read that the copies are still to come
  void* memory = session.allocate(kBytes);
  if (!recorder || memory == nullptr) {
    rows.skip("a capture beside copies of the recorder",
              recorder ? "not enough memory on the device" : recorder.status().message());
    return;
  }
  Status s = session.fill(memory, 0, kBytes);
  const kernels::DeviceTensor large[] = {{memory, kBytes / 4, DType::kF32, 0}};
  const kernels::DeviceTensor small[] = {{memory, 1000, DType::kF32, 1}};
  DeviceStatsTarget target;
  target.recorder = recorder->get();
  const auto enqueue = [&](const auto& tensors) {
    return bench.stats->enqueue(tensors, StatsLevel::kCounts, target, session.stream());
  };
  for (int i = 0; i < 200 && s; ++i) s = enqueue(large);
  if (s) s = (*recorder)->copy_ring(session.stream());
  if (s) {
    s = session.replay(
        [&] {
          Status captured = enqueue(small);
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          if (captured) captured = (*recorder)->copy_ring(session.stream());
          return captured ? (*recorder)->advance_step(session.stream()) : captured;
        },
        10);
  }
  if (s) s = (*recorder)->flush();
  const kernels::DeviceRecorderCounts counts = (*recorder)->counts();
  rows.check("a capture goes on beside copies of the recorder",
             s.is_ok() && counts.copies_skipped == 1 && counts.delivered == 210,
             std::to_string(counts.delivered) + " delivered, " + std::to_string(counts.copies_skipped) +
                 " copies left out " + s.message());
  session.release(memory);
}

void run_graph_checks(Rows& rows) {
  auto bench = Bench::open(kernels::kTensorsInParameters, std::uint64_t{1} << 17, true);
  if (!bench) {
    rows.check("graphs", false, bench.status().message());
    return;
  }
  DeviceSession& session = *(*bench)->session;
  OwnedTensor tensor = make_tensor(DType::kBF16, 3000001, Content::kOdd, 3);
  unsigned char* memory = (*bench)->upload(tensor);
  const TensorView view{memory, DType::kBF16, tensor.view().sizes, tensor.view().strides};
  std::int64_t repeats = 1;
  check_capture_beside_copies(**bench, rows);
  const kernels::DeviceStatsView plan = *kernels::plan_device_view(view, repeats);
  for (const StatsLevel level : kLevels) {
    const TensorStats direct = (*bench)->run(view, level);
    const Status s = session.replay(
        [&] { return (*bench)->stats->enqueue(plan, 0, level, (*bench)->target, session.stream()); }, 1000);
    const TensorStats replayed = (*bench)->stats_of(0, (*bench)->records(1)[0]);
    rows.check("1000 replays of a graph give the same bits, level " + std::string(level_name(level)),
               s.is_ok() && replayed == direct, s.message());
  }

  std::atomic<std::uint64_t> records{0}, wrong{0};
  kernels::DeviceRecorderOptions options;
  options.capacity = 4096;
  std::uint64_t next = 0;
  auto recorder = kernels::DeviceRecorder::create(options, [&](const kernels::DeviceRecord& record) {
    if ((record.flags & kernels::kRecordFlagged) == 0) {
      wrong += record.step == next / 2 ? 0 : 1;
      ++next;
    }
    ++records;
  });
  if (!recorder) {
    rows.check("a recorder in a graph", false, recorder.status().message());
    return;
  }
  OwnedTensor clean = make_tensor(DType::kF32, 1000, Content::kNormal, 4);
  unsigned char* clean_memory = (*bench)->upload(clean);
  const kernels::DeviceTensor one[] = {{clean_memory, 1000, DType::kF32, 1}};
  DeviceStatsTarget target;
  target.recorder = recorder->get();
  const Status s = session.replay(
      [&] {
        for (int op = 0; op < 2; ++op) {
          if (Status enqueued = (*bench)->stats->enqueue(one, StatsLevel::kCounts, target, session.stream());
              !enqueued) {
            return enqueued;
          }
        }
        return (*recorder)->advance_step(session.stream());
      },
      1000);
  const Status flushed = (*recorder)->flush();
  rows.check("every replay of a graph has slots and a step of its own",
             s.is_ok() && flushed.is_ok() && records == 2000 && wrong == 0,
             std::to_string(records) + " records, " + std::to_string(wrong) + " of a wrong step " + s.message());
}

}  // namespace nanhunt::gpu
