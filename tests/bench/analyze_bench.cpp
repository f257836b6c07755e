// SPDX-License-Identifier: Apache-2.0
// How fast the analyzer reads, and what memory it takes, as a trace grows: analyze_bench [LARGEST [SMALLEST]] feeds it
// that many ops at most (10^7; powers of ten from 10^5 on), made on the fly, and prints a row for each size. Making
// them is not timed; times are of the processor. Rows: training_rows.h; results: README.md.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "nanhunt/analyzer.h"
#include "tests/bench/training_rows.h"

namespace nanhunt::bench {
namespace {

constexpr std::size_t kBatchOps = 2048;  // as the recorder hands them over

std::uint64_t records_in(const RecordBatch& b) {
  return b.values.size() + b.ops.size() + b.marks.size() + b.sample_ids.size() + b.steps.size() + b.ends_of_life.size();
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

// Of this thread, so that other programs on the machine do not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void measure(std::uint64_t ops) {
  TrainingRows rows(/*seed=*/20261121, /*marks=*/true);
  auto analyzer = Analyzer::make();
  std::uint64_t done = 0, records = 0;
  double seconds = 0;
  while (done < ops) {
    const RecordBatch batch = rows.next(std::min<std::uint64_t>(kBatchOps, ops - done));
    done += batch.ops.size();
    records += records_in(batch);
    const double start = cpu_seconds();
    analyzer->add(batch);
    seconds += cpu_seconds() - start;
  }
  const double start = cpu_seconds();
  const Analysis analysis = analyzer->finish({}, {});
  seconds += cpu_seconds() - start;
  if (analysis.coverage.ops != ops) std::abort();
  fmt::print("{:>11} ops {:>11} records {:>8.2f} s {:>7.2f} M records/s {:>7.2f} M ops/s {:>6.0f} MiB peak\n",
             ops, records, seconds, static_cast<double>(records) / seconds / 1e6,
             static_cast<double>(ops) / seconds / 1e6, peak_mib());
  std::fflush(stdout);
}

}  // namespace
}  // namespace nanhunt::bench

int main(int argc, char** argv) {
  const double largest = argc > 1 ? std::atof(argv[1]) : 1e7;
  const double smallest = argc > 2 ? std::atof(argv[2]) : 1e5;
  for (double ops = smallest; ops <= largest * 1.001; ops *= 10) {
    nanhunt::bench::measure(static_cast<std::uint64_t>(std::llround(ops)));
  }
  return 0;
}
