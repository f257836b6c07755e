// SPDX-License-Identifier: Apache-2.0
// A training loop is killed at a hundred random moments. What it had handed over more than flush_ms before its last
// sign of life must be in the file, but for the batch that was being written.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "nanhunt/recorder.h"
#include "tests/record/support.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_dir.h"

namespace nanhunt {
namespace {

using record::testing::TestTensor;
using Clock = std::chrono::steady_clock;

constexpr int kKills = 100;
constexpr int kFlushMs = 30;
constexpr unsigned kMostLifeUs = 60'000;
constexpr std::uint64_t kBatchOps = 2048;  // the most ops in one batch, src/record/recorder.cpp

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// Memory that outlives the victim: when it handed over each op, by its own clock, before and after the call.
struct Log {
  static constexpr std::uint64_t kMost = 1u << 20;
  struct Line {
    std::int64_t before = 0, after = 0;
  };
  std::atomic<std::uint64_t> lines{0};
  Line line[kMost];
};

class SharedLog {
 public:
  SharedLog() {
    void* memory =
        mmap(nullptr, sizeof(Log), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) log_ = new (memory) Log;
  }
  ~SharedLog() {
    if (log_ != nullptr) munmap(log_, sizeof(Log));
  }
  SharedLog(const SharedLog&) = delete;
  SharedLog& operator=(const SharedLog&) = delete;
  Log* get() const { return log_; }

 private:
  Log* log_ = nullptr;
};

// A training loop: two ops a step, a mark, the end of the step, and the release of what it made.
[[noreturn]] void train(const std::string& dir, Log& log) {
  RecorderOptions options;
  options.run_dir = dir;
  options.flush_ms = kFlushMs;
  auto recorder = Recorder::open(options, {});
  if (!recorder) _exit(2);
  const TestTensor weight(DType::kF32, {4}, {1, 2, 3, 4}, 1);
  for (std::uint64_t i = 0; i < Log::kMost; ++i) {
    const TestTensor out(DType::kF32, {4}, {1, double(i), 0.5, i % 5000 == 4999 ? std::nan("") : 1}, i + 2);
    log.line[i].before = now_ns();
    record::testing::op([&](const OpEvent& e) { (*recorder)->on_op(e); }, "exp", {{"self", weight}}, {{"out", out}});
    log.line[i].after = now_ns();
    log.lines.store(i + 1, std::memory_order_release);
    if (i % 2 == 1) {
      (*recorder)->on_mark({std::uint32_t(i / 2), 0, TensorRole::kLoss, "loss", out.value()});
      (*recorder)->on_step_end({std::uint32_t(i / 2), false, 0.5, 0.1, 1});
    }
    (*recorder)->on_storage_released(i + 2);
  }
  for (;;) pause();
}

// How many ops it had handed over for flush_ms when it handed over the last one.
std::uint64_t promised_of(const Log& log) {
  const std::uint64_t lines = log.lines.load();
  if (lines == 0) return 0;
  const std::int64_t until = log.line[lines - 1].before - std::int64_t{kFlushMs} * 1'000'000;
  const auto* end = std::partition_point(log.line, log.line + lines,
                                         [&](const Log::Line& line) { return line.after <= until; });
  return static_cast<std::uint64_t>(end - log.line);
}

TEST(Kill, a_hundred_kills_at_random_moments_lose_no_more_than_is_promised) {
  const testing_support::TempDir dir;
  const std::string root = dir.path("run");
  std::mt19937 random(20260727);
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    SCOPED_TRACE(kill_number);
    const SharedLog shared;
    ASSERT_NE(shared.get(), nullptr);
    Log& log = *shared.get();
    std::filesystem::remove_all(root);
    // given a victim that has begun to record, or has recorded so long that more than one batch must be there
    const bool long_life = kill_number % 5 == 0;
    const pid_t victim = fork();
    ASSERT_GE(victim, 0);
    if (victim == 0) train(root, log);
    EXPECT_TRUE(testing_support::eventually(
        [&] { return long_life ? promised_of(log) > kBatchOps : log.lines.load() > 0; }));
    // when it is killed, some time later
    usleep(static_cast<useconds_t>(random() % kMostLifeUs));
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(victim, &status, 0), victim);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    // then every op that was handed over flush_ms before its last sign of life is there, but for one batch
    const std::uint64_t lines = log.lines.load();
    ASSERT_GT(lines, 0u);
    const std::uint64_t promised = promised_of(log);
    auto attempts = find_attempts(root);
    ASSERT_TRUE(attempts) << attempts.status().message();
    TraceHealth health;
    std::uint64_t next = 0;
    std::uint64_t nan = 0;
    const Status read = read_attempt(
        attempts->front(),
        [&](const RecordBatch& batch) {
          for (const OpRecord& op : batch.ops) EXPECT_EQ(op.seq, next++);
          for (const ValueRecord& value : batch.values) nan += value.stats.nan > 0 ? 1 : 0;
        },
        health);
    // At most the chunk that was being written is torn; nothing before it is missing.
    EXPECT_TRUE(read.is_ok() || read.code() == StatusCode::kDamaged) << read.message();
    EXPECT_LE(health.chunks_lost, 1u);
    EXPECT_GE(next + kBatchOps, promised) << "of " << lines << " handed over";
    EXPECT_LE(next, lines + 1);
    EXPECT_LE(next / 5000, nan);  // no anomaly among the ops that are there is missing
  }
}

}  // namespace
}  // namespace nanhunt
