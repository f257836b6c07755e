// SPDX-License-Identifier: Apache-2.0
// Each level of compute_stats against reading the same 256 MiB, on one core. Every iteration times a plain read, a
// prefetched read and the statistics one after the other, so that whatever else the machine does hits all
// three; the reported time is that of the statistics, the counters are medians over the iterations:
//   read_ms, best_ms   the plain read and the faster of the two reads
//   of_read, of_best   their time divided by that of the statistics: 1 is the speed of reading
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/tensor_stats_block.h"
#include "tests/bench/plain_read.h"

namespace nanhunt::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;

// What the tensor holds: "normal" is what training tensors look like (standard normal, one zero in a thousand;
// in fp16 that includes subnormals), "gradient" the same scaled by 1e-5 (mostly subnormal in fp16), "bits" random bit
// patterns: every class in every block, the worst there is.
enum class Content { kNormal, kGradient, kBits };
constexpr const char* kContentNames[] = {"normal", "gradient", "bits"};

struct Buffer {
  std::unique_ptr<char[], void (*)(void*)> bytes{static_cast<char*>(std::aligned_alloc(4096, kBytes)), std::free};
  int holds = -1;  // dtype and content it was last filled for
};

// One buffer for the whole run. The first 8 MiB are made, the rest repeats them.
const char* filled(DType dtype, Content content) {
  static Buffer buffer;
  const int key = static_cast<int>(dtype) * 8 + static_cast<int>(content);
  if (buffer.holds == key) return buffer.bytes.get();
  buffer.holds = key;
  constexpr std::size_t kMade = std::size_t{8} << 20;
  const std::size_t size = dtype_size(dtype);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  char* to = buffer.bytes.get();
  for (std::size_t i = 0; i < kMade / size; ++i) {
    const std::uint64_t bits = random();
    const double value = bits % 1000 == 0 ? 0.0 : normal(random) * (content == Content::kGradient ? 1e-5 : 1.0);
    if (content == Content::kBits) {
      std::memcpy(to + i * size, &bits, size);
    } else {
      store_from_f64(dtype, to + i * size, value);
    }
  }
  for (std::size_t at = kMade; at < kBytes; at += kMade) std::memcpy(to + at, to, kMade);
  return to;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

template <class Work>
double seconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  benchmark::DoNotOptimize(work());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void stats_against_read(benchmark::State& state, kernels::Simd simd, DType dtype, Content content, StatsLevel level) {
  const char* data = filled(dtype, content);
  const std::int64_t sizes[] = {static_cast<std::int64_t>(kBytes / dtype_size(dtype))};
  const std::int64_t strides[] = {1};
  const TensorView view{data, dtype, sizes, strides};
  std::vector<double> plain, best, of_read, of_best;
  for (auto _ : state) {
    const double read = seconds([&] { return plain_read(data, kBytes); });
    const double prefetched = seconds([&] { return prefetched_read(data, kBytes); });
    const double stats = seconds([&] { return kernels::compute_stats_on(simd, view, level).numel; });
    state.SetIterationTime(stats);
    plain.push_back(read * 1e3);
    best.push_back(std::min(read, prefetched) * 1e3);
    of_read.push_back(read / stats);
    of_best.push_back(std::min(read, prefetched) / stats);
  }
  state.counters["read_ms"] = median(plain);
  state.counters["best_ms"] = median(best);
  state.counters["of_read"] = median(of_read);
  state.counters["of_best"] = median(of_best);
}

void add(kernels::Simd simd, DType dtype, Content content, StatsLevel level) {
  static constexpr const char* kLevelNames[] = {"finite", "counts", "sums", "what_if", "histogram"};
  const std::string name = std::string("tensor_stats/") + std::string(kernels::simd_name(simd)) + "/" +
                           std::string(dtype_name(dtype)) + "/" + kContentNames[static_cast<int>(content)] + "/" +
                           kLevelNames[static_cast<int>(level)];
  benchmark::RegisterBenchmark(name.c_str(), stats_against_read, simd, dtype, content, level)
      ->Iterations(15)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

// Dtype and content outside, so that the buffer is filled once for all levels and paths.
const bool kAdded = [] {
  constexpr DType kFloats[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kE4M3FN, DType::kE5M2};
  constexpr kernels::Simd kPaths[] = {kernels::Simd::kAvx512, kernels::Simd::kAvx2};
  for (const DType dtype : kFloats) {
    for (const Content content : {Content::kNormal, Content::kGradient, Content::kBits}) {
      for (const kernels::Simd simd : kPaths) {
        if (!kernels::simd_supported(simd)) continue;
        for (int level = 0; level <= static_cast<int>(StatsLevel::kHistogram); ++level) {
          if (content == Content::kBits && level == 0) continue;  // ends at the first block
          add(simd, dtype, content, static_cast<StatsLevel>(level));
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace nanhunt::bench
