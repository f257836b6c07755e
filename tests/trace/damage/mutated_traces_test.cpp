// SPDX-License-Identifier: Apache-2.0
// Ten thousand mutated traces through reader, analyzer and salvage: no crash, no broken promise, and never more memory
// than the caps allow. Replaces operator new for the whole program to count, so it is a program of its own.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "nanhunt/analyzer.h"
#include "tests/trace/damage/decode_target.h"
#include "tests/trace/damage/mutator.h"
#include "tests/trace/long_run.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace {

std::atomic<std::size_t> live_bytes{0}, most_bytes{0};

void* allocate(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = live_bytes += malloc_usable_size(memory);
  if (now > most_bytes) most_bytes = now;  // one thread
  return memory;
}
void release(void* memory) {
  if (memory != nullptr) live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
// The library's own calls the first, but a sanitizer's does not.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;

#ifdef __SANITIZE_THREAD__
constexpr int kTraces = 1000 / 4;  // one thread: nothing for it to see, at twenty times the cost
#else
constexpr int kTraces = 10'000 / 4;
#endif
// A chunk may hold 65,536 rows and lists of 1,048,576 items in a few bytes, so a frame may unpack to some of that of
// every kind; the traces here are some kilobytes.
constexpr std::size_t kMostBytes = 512u << 20;

// A quarter of the ten thousand each, so that they need not wait for each other.
class MutatedTraces : public TraceTest, public ::testing::WithParamInterface<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Quarters, MutatedTraces, ::testing::Range(0u, 4u));

TEST_P(MutatedTraces, go_through_reader_analyzer_and_salvage_within_bounds) {
  // given one trace with every kind of row in two segments, and one that makes sense to the analyzer
  RandomBatches random(61);
  const RecordBatch rows = random.next(6), more = random.next(6);
  const std::string strange = write_trace("strange", {rows, more}, {.segment_bytes = 3000});
  LongRun run(62, {.bad_every = 3, .steps_a_batch = 12});
  const std::string sound = write_trace("sound", {run.next_batch(), run.next_batch()}, {.segment_bytes = 1500});
  const std::vector<std::string> strange_files = segments(strange), sound_files = segments(sound);
  ASSERT_GE(strange_files.size(), 2u);
  ASSERT_GE(sound_files.size(), 2u);
  const Bytes kept_strange[] = {load(strange_files[0]), load(strange_files[1])};
  const Bytes kept_sound[] = {load(sound_files[0]), load(sound_files[1])};
  const RecordBatch sound_rows = LongRun(63, {.bad_every = 2, .steps_a_batch = 6}).next_batch();
  Mutator mutator(64 + GetParam());
  int readable = 0, found = 0, salvaged = 0;
  for (int trace = 0; trace < kTraces; ++trace) {
    SCOPED_TRACE(trace);
    // when its segments are mutated
    const bool makes_sense = trace % 2 == 0;
    const auto& good = makes_sense ? kept_sound : kept_strange;
    const auto& files = makes_sense ? sound_files : strange_files;
    const std::string& dir = makes_sense ? sound : strange;
    for (std::size_t i = 0; i < 2; ++i) {
      if (mutator.below(4) == 0) continue;  // stays as the trace before left it
      save(files[i], mutator.mutated_segment(good[i], good[1 - i], makes_sense ? sound_rows : rows));
    }
    const std::size_t before = live_bytes;
    most_bytes = before;
    // then reading, analyzing and salvaging end well
    read_and_check(dir);
    AttemptTrace attempt;
    attempt.dir = dir;
    const auto analyzer = Analyzer::make();
    TraceHealth health;
    const Status read = read_attempt(
        attempt, [&](const RecordBatch& batch) { analyzer->add(batch); }, health);
    const Analysis analysis = analyzer->finish(attempt.info, health);
    readable += read.is_ok() || read.code() == StatusCode::kDamaged ? 1 : 0;
    found += analysis.findings.empty() ? 0 : 1;
    std::error_code ignored;
    fs::remove_all(path("saved"), ignored);
    const Status saved = salvage_attempt(attempt, path("saved"), health);
    if (saved) {
      ++salvaged;
      AttemptTrace copy;
      copy.dir = path("saved") + "/rank-00000/attempt-0";
      const Status reread = read_attempt(copy, [](const RecordBatch&) {}, health);
      EXPECT_TRUE(reread.is_ok()) << reread.message();
      EXPECT_TRUE(health.clean_end);
    }
    ASSERT_LT(most_bytes - before, kMostBytes);
  }
  EXPECT_GT(readable, kTraces / 2) << "most must get past the first checks to tell anything";
  EXPECT_GT(salvaged, kTraces / 2);
  EXPECT_GT(found, kTraces / 10);
}

}  // namespace
}  // namespace nanhunt::trace_testing
