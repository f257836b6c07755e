// SPDX-License-Identifier: Apache-2.0
// Bytes read per second by the statistics kernels, against bytes read and written per second by a copy on the same
// device. Both are timed with events, one after the other in every round; the ratio is the median over the rounds.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/gpu/checks.h"
#include "tests/gpu/device_tensors.h"

namespace nanhunt::gpu {
namespace {

constexpr int kRounds = 30;
// A time is that of several in a row, so that the host's way to the first launch is a small part of it.
constexpr int kInARow = 5;
constexpr std::size_t kBytes = std::size_t{1} << 30;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
std::string spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[96];
  std::snprintf(text, sizeof text, "rounds %.3f to %.3f", values.front(), values.back());
  return text;
}

// 0: no target. The ratios that the README of tests/bench asks for.
double required(DType dtype) {
  const std::size_t bytes = dtype_size(dtype);
  if (bytes == 1 || dtype == DType::kF64) return 0;
  return bytes == 4 ? 0.90 : 0.80;
}

// One gibibyte of standard normal numbers with a zero in a thousand: 8 MiB made, the rest repeats them.
Status fill_normal(DeviceSession& session, unsigned char* memory, DType dtype) {
  constexpr std::size_t kMade = std::size_t{8} << 20;
  OwnedTensor made(dtype, kMade / dtype_size(dtype));
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (std::size_t i = 0; i < made.count(); ++i) made.set(i, random() % 1000 == 0 ? 0.0 : normal(random));
  for (std::size_t at = 0; at < kBytes; at += kMade) {
    if (Status s = session.copy_in(memory + at, made.at(0), kMade); !s) return s;
  }
  return Status::ok();
}

struct Rates {
  std::vector<double> work_ms, copy_ms, ratio;
};

// Milliseconds of one.
Result<double> time_one(DeviceSession& session, const std::function<Status()>& work) {
  const Result<double> all = session.time([&] {
    for (int i = 0; i < kInARow; ++i) {
      if (Status s = work(); !s) return s;
    }
    return Status::ok();
  });
  if (!all) return all.status();
  return *all / kInARow;
}

// `share`: bytes that `work` reads over bytes that the copy reads and writes.
Result<Rates> interleave(DeviceSession& session, const std::function<Status()>& work,
                         const std::function<Status()>& copy, double share) {
  Rates rates;
  for (int round = -3; round < kRounds; ++round) {  // three to warm up
    const Result<double> work_ms = time_one(session, work);
    if (!work_ms) return work_ms.status();
    const Result<double> copy_ms = time_one(session, copy);
    if (!copy_ms) return copy_ms.status();
    if (round < 0) continue;
    rates.work_ms.push_back(*work_ms);
    rates.copy_ms.push_back(*copy_ms);
    rates.ratio.push_back(share * *copy_ms / *work_ms);
  }
  return rates;
}

std::string described(const Rates& rates, std::size_t bytes) {
  char text[160];
  std::snprintf(text, sizeof text, "%.3f ms, %.0f GB/s read; copy %.0f GB/s read and written; ", median(rates.work_ms),
                static_cast<double>(bytes) / median(rates.work_ms) / 1e6, 2.0 * kBytes / median(rates.copy_ms) / 1e6);
  return text + spread(rates.ratio);
}

void bench_table(Bench& bench, Rows& rows, unsigned char* memory) {
  // 150 tensors of 2 KiB to 4 MiB, as many of each order of magnitude, in one launch.
  std::vector<kernels::DeviceTensor> tensors;
  std::size_t at = 0;
  std::mt19937_64 random(7);
  for (std::uint32_t i = 0; i < kernels::kTensorsInParameters; ++i) {
    const double power = 11 + static_cast<double>(random() % 1000) / 1000 * 11;
    const auto bytes = static_cast<std::size_t>(std::exp2(power)) / 512 * 512;
    if (at + bytes > kBytes) break;
    tensors.push_back({memory + at, static_cast<std::int64_t>(bytes / 2), DType::kF16, i});
    at += bytes;
  }
  const auto work = [&] { return bench.stats->enqueue(tensors, bench.target, bench.session->stream()); };
  const auto whole = [&] {  // the same bytes as one tensor
    const kernels::DeviceTensor one[] = {{memory, static_cast<std::int64_t>(at / 2), DType::kF16, 0}};
    return bench.stats->enqueue(one, bench.target, bench.session->stream());
  };
  Rates rates;
  for (int round = -3; round < kRounds; ++round) {
    const Result<double> work_ms = time_one(*bench.session, work);
    const Result<double> whole_ms = time_one(*bench.session, whole);
    if (!work_ms || !whole_ms) {
      rows.check("150 tensors", false, (!work_ms ? work_ms : whole_ms).status().message());
      return;
    }
    if (round < 0) continue;
    rates.work_ms.push_back(*work_ms);
    rates.ratio.push_back(*whole_ms / *work_ms);
  }
  char text[128];
  std::snprintf(text, sizeof text, "%zu tensors, %.1f MiB, %.3f ms against one tensor of the same bytes; ",
                tensors.size(), static_cast<double>(at) / (1 << 20), median(rates.work_ms));
  rows.measure("150 tensors in one launch, fp16", median(rates.ratio), 1 / 1.1,
               text + spread(rates.ratio));
}

}  // namespace

void run_kernel_bench(Rows& rows) {
  auto opened = Bench::open(kernels::kTensorsInParameters, std::uint64_t{1} << 17);
  if (!opened) {
    rows.check("benchmark", false, opened.status().message());
    return;
  }
  Bench& bench = **opened;
  DeviceSession& session = *bench.session;
  auto* memory = static_cast<unsigned char*>(session.allocate(kBytes));
  auto* other = static_cast<unsigned char*>(session.allocate(kBytes));
  if (memory == nullptr || other == nullptr) {
    rows.skip("benchmark", "not enough memory on the device for two buffers of 1 GiB");
    return;
  }
  const auto copy = [&] { return session.copy(other, memory, kBytes); };
  const Result<Rates> control = interleave(session, copy, copy, 1.0);
  if (!control) {
    rows.check("benchmark", false, control.status().message());
    return;
  }
  rows.measure("control: a copy against itself", median(control->ratio), 0, spread(control->ratio));
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN, DType::kE5M2}) {
    if (Status s = fill_normal(session, memory, dtype); !s) {
      rows.check("benchmark", false, s.message());
      return;
    }
    const kernels::DeviceTensor one[] = {{memory, static_cast<std::int64_t>(kBytes / dtype_size(dtype)), dtype, 0}};
    const auto work = [&] { return bench.stats->enqueue(one, bench.target, session.stream()); };
    const Result<Rates> rates = interleave(session, work, copy, 0.5);
    const std::string name = "1 GiB of " + std::string(dtype_name(dtype));
    if (!rates) {
      rows.check(name, false, rates.status().message());
      continue;
    }
    rows.measure(name, median(rates->ratio), required(dtype), described(*rates, kBytes));
  }
  if (fill_normal(session, memory, DType::kF16)) bench_table(bench, rows, memory);
}

}  // namespace nanhunt::gpu
