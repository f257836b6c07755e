// SPDX-License-Identifier: Apache-2.0
// The recorder with a real trace file, in processes that die or run out of disk.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "nanhunt/recorder.h"
#include "src/record/recorder.h"
#include "tests/record/support.h"
#include "tests/support/killed_run.h"
#include "tests/support/temp_dir.h"

namespace nanhunt {
namespace {

using record::testing::TestTensor;

class SurvivalTest : public ::testing::Test {
 protected:
  RecorderOptions options() const {
    RecorderOptions options;
    options.run_dir = dir_.path();
    return options;
  }
  static void record_ops(Recorder& recorder, std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      const TestTensor in(DType::kF32, {2}, {double(i), 0.1}, 2 * i + 1),
          out(DType::kF32, {2}, {1, double(i)}, 2 * i + 2);
      record::testing::op([&](const OpEvent& e) { recorder.on_op(e); }, "exp", {{"self", in}}, {{"out", out}});
      recorder.on_storage_released(2 * i + 1);
      recorder.on_storage_released(2 * i + 2);
    }
  }
  // Runs `body` in a child; returns how it ended, as waitpid says.
  template <typename Body>
  static int in_child(Body&& body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }
  // Runs `body`, which never ends, in a child that is killed once so many ops are in the file.
  template <typename Body>
  void kill_once_there_are(std::size_t ops, Body&& body) const {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      body();
      for (;;) pause();
    }
    testing_support::kill_once_there_are(ops, dir_.path(), child);
  }
  RecordBatch read(TraceHealth& health, Status* status = nullptr) const {
    RecordBatch all;
    auto attempts = find_attempts(dir_.path());
    EXPECT_TRUE(attempts) << attempts.status().message();
    if (!attempts) return all;
    EXPECT_EQ(attempts->size(), 1u);
    const Status read = read_attempt(
        attempts->front(), [&](const RecordBatch& b) { record::testing::append(all, b); }, health);
    if (status != nullptr) *status = read;
    return all;
  }

  testing_support::TempDir dir_;
};

TEST_F(SurvivalTest, a_finished_run_reads_back_whole) {
  auto recorder = Recorder::open(options(), {});
  ASSERT_TRUE(recorder) << recorder.status().message();
  record_ops(**recorder, 0, 5000);
  EXPECT_TRUE((*recorder)->close());
  TraceHealth health;
  const RecordBatch all = read(health);
  EXPECT_TRUE(health.clean_end);
  EXPECT_FALSE(health.damaged());
  EXPECT_EQ(all.ops.size(), 5000u);
  EXPECT_EQ(all.values.size(), 10000u);
}

TEST_F(SurvivalTest, what_a_run_recorded_comes_into_its_file_by_itself_and_stays_when_it_is_killed) {
  // given a run that does nothing more after its last op
  kill_once_there_are(3000, [&] {
    RecorderOptions o = options();
    o.flush_ms = 100;
    auto recorder = Recorder::open(o, {});
    if (!recorder) _exit(2);
    record_ops(**recorder, 0, 3000);
    for (;;) pause();
  });
  // then
  TraceHealth health;
  Status read_status;
  const RecordBatch all = read(health, &read_status);
  EXPECT_TRUE(read_status) << read_status.message();
  EXPECT_FALSE(health.clean_end);
  EXPECT_EQ(all.ops.size(), 3000u);
}

TEST_F(SurvivalTest, a_run_killed_in_the_middle_of_recording_reads_back_up_to_some_point) {
  kill_once_there_are(1, [&] {
    auto recorder = Recorder::open(options(), {});
    if (!recorder) _exit(2);
    for (std::uint64_t i = 0;; ++i) record_ops(**recorder, i * 100, 100);
  });
  TraceHealth health;
  const RecordBatch all = read(health);
  EXPECT_FALSE(health.clean_end);
  EXPECT_EQ(health.chunks_lost, 0u);
  ASSERT_GT(all.ops.size(), 0u);
  for (std::size_t i = 0; i < all.ops.size(); ++i) ASSERT_EQ(all.ops[i].seq, i);
}

TEST_F(SurvivalTest, a_full_disk_is_reported_and_the_run_goes_on) {
  // given a child that may write no more once 1000 ops are in the file
  const int status = in_child([&] {
    auto recorder = Recorder::open(options(), {});
    if (!recorder) _exit(2);
    record_ops(**recorder, 0, 1000);
    if (!(*recorder)->flush()) _exit(3);
    const auto file = std::filesystem::path((*recorder)->attempt_dir()) / "000000.nht";
    const rlim_t size = std::filesystem::file_size(file);
    const rlimit limit{size, size};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(4);
    for (std::uint64_t i = 0; i < 20; ++i) {
      record_ops(**recorder, 1000 + i * 2000, 2000);
      if ((*recorder)->flush().code() != StatusCode::kWriteFailed) _exit(5);
    }
    const RecorderCounters counters = (*recorder)->counters();
    if (counters.write_errors == 0 || counters.ops != 41000 || counters.dropped_ops == 0) _exit(6);
    if ((*recorder)->close().code() != StatusCode::kWriteFailed) _exit(7);
  });
  // then it was not killed by SIGXFSZ, what was written before is there, and nothing looks complete
  ASSERT_TRUE(WIFEXITED(status)) << status;
  ASSERT_EQ(WEXITSTATUS(status), 0);
  TraceHealth health;
  const RecordBatch all = read(health);
  EXPECT_TRUE(!health.clean_end || health.chunks_lost > 0);
  ASSERT_GE(all.ops.size(), 1000u);
  for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(all.ops[i].seq, i);
}

TEST_F(SurvivalTest, what_is_in_the_file_and_what_is_counted_as_dropped_add_up_after_a_full_disk) {
  // given room for some chunks of a batch, but not for all
  constexpr std::uint64_t kOps = 20000;
  void* const shared =
      mmap(nullptr, sizeof(RecorderCounters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const dropped = static_cast<std::uint64_t*>(shared);
  const int status = in_child([&] {
    RecorderOptions o = options();
    o.flush_ms = 1 << 20;  // batches are cut by their size
    auto recorder = Recorder::open(o, {});
    if (!recorder) _exit(2);
    const rlimit limit{20'000, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(3);
    record_ops(**recorder, 0, kOps);
    if ((*recorder)->flush().code() != StatusCode::kWriteFailed) _exit(4);
    const rlimit room{RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &room) != 0) _exit(5);
    if ((*recorder)->close().code() != StatusCode::kWriteFailed) _exit(6);
    const RecorderCounters counters = (*recorder)->counters();
    dropped[0] = counters.dropped_ops;
    dropped[1] = counters.dropped_values;
    dropped[2] = counters.dropped_other;
  });
  ASSERT_TRUE(WIFEXITED(status)) << status;
  ASSERT_EQ(WEXITSTATUS(status), 0);
  // then
  TraceHealth health;
  const RecordBatch all = read(health);
  EXPECT_GT(all.ops.size(), 0u);
  EXPECT_GT(dropped[0], 0u);
  EXPECT_EQ(all.ops.size() + dropped[0], kOps);
  EXPECT_EQ(all.values.size() + dropped[1], 2 * kOps);
  EXPECT_LE(all.ends_of_life.size() + dropped[2], 2 * kOps);  // of a storage without rows no end is told
  DropRecord told;
  for (const DropRecord& drop : all.drops) {
    told.ops += drop.ops;
    told.values += drop.values;
    told.other += drop.other;
  }
  EXPECT_EQ(told.ops, dropped[0]);
  EXPECT_EQ(told.values, dropped[1]);
  EXPECT_EQ(told.other, dropped[2]);
  munmap(shared, sizeof(RecorderCounters));
}

TEST_F(SurvivalTest, a_forked_child_leaves_the_parents_trace_alone) {
  auto recorder = Recorder::open(options(), {});
  ASSERT_TRUE(recorder) << recorder.status().message();
  record_ops(**recorder, 0, 10);
  ASSERT_TRUE((*recorder)->flush());
  const int status = in_child([&] {
    record_ops(**recorder, 10, 10000);
    recorder->reset();
  });
  EXPECT_TRUE(WIFEXITED(status)) << status;
  record_ops(**recorder, 10, 10);
  EXPECT_TRUE((*recorder)->close());
  TraceHealth health;
  EXPECT_EQ(read(health).ops.size(), 20u);
  EXPECT_TRUE(health.clean_end);
}

TEST_F(SurvivalTest, a_child_forked_while_an_event_is_recorded_does_not_wait_for_it) {
  // given an event that holds the recorder's lock for long: it waits for a writer that is stuck
  auto script = std::make_shared<record::testing::WriterScript>();
  RecorderOptions o = options();
  o.queue_bytes = 4 << 10;
  auto made = record::make_recorder(o, std::make_unique<record::testing::ScriptedWriter>(script));
  ASSERT_TRUE(made);
  script->set_blocked(true);
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> recorded{0};
  std::thread run([&] {
    for (std::uint64_t i = 0; i < 1000; ++i) {
      record_ops(**made, i, 1);
      recorded = i + 1;
    }
    done = true;
  });
  ASSERT_TRUE(script->wait([&] { return script->waiting == 1; }));
  for (std::uint64_t seen = 1000; seen != recorded;) {
    seen = recorded;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_FALSE(done);
  // when a child of that moment uses the recorder in every way
  const int status = in_child([&] {
    alarm(300);
    record_ops(**made, 5000, 10);
    if ((*made)->counters().ops != 0) _exit(1);
    if (!(*made)->flush() || !(*made)->close()) _exit(2);
    made->reset();
  });
  // then nothing hung
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  script->set_blocked(false);
  run.join();
  EXPECT_TRUE((*made)->close());
  EXPECT_EQ(script->all().ops.size(), 1000u);
}

TEST_F(SurvivalTest, a_folder_in_which_nothing_more_can_be_made_keeps_the_segment_going) {
  RecorderOptions o = options();
  o.writer.segment_bytes = 20'000;
  auto recorder = Recorder::open(o, {});
  ASSERT_TRUE(recorder) << recorder.status().message();
  // given something else in the place of the next segment (a mode would not stop root)
  std::filesystem::create_directory((*recorder)->attempt_dir() + "/000001.nht");
  // when
  record_ops(**recorder, 0, 20000);
  EXPECT_TRUE((*recorder)->close());
  // then nothing is lost
  EXPECT_EQ((*recorder)->counters().dropped_ops, 0u);
  std::filesystem::remove((*recorder)->attempt_dir() + "/000001.nht");
  TraceHealth health;
  EXPECT_EQ(read(health).ops.size(), 20000u);
  EXPECT_EQ(health.segments, 1u);
  EXPECT_TRUE(health.clean_end);
}

TEST_F(SurvivalTest, a_run_whose_folder_is_taken_away_goes_on_and_ends_well) {
  auto recorder = Recorder::open(options(), {});
  ASSERT_TRUE(recorder) << recorder.status().message();
  record_ops(**recorder, 0, 10);
  std::filesystem::remove_all(dir_.path());
  record_ops(**recorder, 10, 5000);
  const Status end = (*recorder)->close();  // the file lives on without a name
  EXPECT_TRUE(end) << end.message();
}

TEST_F(SurvivalTest, a_folder_that_cannot_be_made_is_an_error_not_a_crash) {
  const std::string file = dir_.path("file");
  close(open(file.c_str(), O_CREAT | O_WRONLY, 0600));
  RecorderOptions o = options();
  o.run_dir = file + "/run";
  auto recorder = Recorder::open(o, {});
  ASSERT_FALSE(recorder);
  EXPECT_EQ(recorder.status().code(), StatusCode::kWriteFailed);
  EXPECT_FALSE(recorder.status().message().empty());
}

}  // namespace
}  // namespace nanhunt
