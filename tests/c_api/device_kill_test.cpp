// SPDX-License-Identifier: Apache-2.0
// A run that is killed while rows wait for readings of a device: what had come by then is in its trace, and no more.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/c_api/device_rows_fixture.h"
#include "tests/support/killed_run.h"

namespace nanhunt::c_api_tests {
namespace {

constexpr int kFlushMs = 50;

class CDeviceKill : public CDeviceRows {
 protected:
  // In a process of its own: one op a step on the device, every tenth bad, whose results come two steps later. It goes
  // on, or stays where it is after `steps` (0: never), until it is killed.
  void begin(std::uint32_t steps) {
    nanhunt_recorder_close(recorder_);
    recorder_ = nullptr;
    ASSERT_EQ(pipe(reported_), 0);
    child_ = fork();
    if (child_ != 0) {
      close(reported_[1]);
      return;
    }
    nanhunt_emulated_set("copies_later", 2);
    nanhunt_recorder_options how = options();
    const std::string run = dir_.path("killed");
    how.run_dir = run.c_str();
    how.flush_ms = kFlushMs;
    open(how);
    stream_ = nanhunt_device_stream(recorder_, 0, kStream);
    for (std::uint32_t step = 0;; ++step) {
      if (steps > 0 && step == steps) pause();
      const std::array<float, 2>& y = step % 10 == 9 ? y_ : good_;
      if (record(log_row_on(x_.data(), y.data(), 10 + 2 * step, step)) != NANHUNT_OK) _exit(1);
      end_step(step);
      const std::uint64_t come = ops();
      if (step < steps && write(reported_[1], &come, sizeof come) != sizeof come) _exit(2);
      usleep(1000);
    }
  }
  // Ops that had come by the end of the next step.
  std::uint64_t next() const {
    std::uint64_t come = 0;
    EXPECT_EQ(::read(reported_[0], &come, sizeof come), static_cast<ssize_t>(sizeof come));
    return come;
  }
  // Kills it once so many ops are in its file.
  void kill_once_there_are(std::uint64_t ops) {
    testing_support::kill_once_there_are(ops, dir_.path("killed"), child_);
    close(reported_[0]);
  }
  // What is there is right: op after op from the first, each with its contents and, if it is bad, its evidence. The
  // last frame may have been cut between two of its chunks: values come before their ops, evidence after them.
  RecordBatch read_right() const {
    const RecordBatch all = read(dir_.path("killed"));
    for (std::size_t i = 0; i < all.ops.size(); ++i) EXPECT_EQ(all.ops[i].seq, i);
    EXPECT_GE(all.values.size(), 2 * all.ops.size());
    for (std::size_t i = 0; i < all.values.size(); ++i) {
      EXPECT_TRUE(all.values[i].has_stats) << i;
      EXPECT_EQ(all.values[i].stats.neg_inf, i % 20 == 19 ? 1 : 0) << i;
    }
    EXPECT_LE(all.evidence.size(), all.ops.size() / 10);
    EXPECT_GE(all.evidence.size(), ops_before_the_last_frame() / 10);
    for (std::size_t i = 0; i < all.evidence.size(); ++i) EXPECT_EQ(all.evidence[i].seq, 10 * i + 9);
    return all;
  }
  std::size_t ops_before_the_last_frame() const {
    std::size_t ops = 0, before = 0;
    TraceHealth health;
    const auto attempts = find_attempts(dir_.path("killed"));
    const auto add = [&](const RecordBatch& frame) {
      before = ops;
      ops += frame.ops.size();
    };
    EXPECT_TRUE(read_attempt(attempts->front(), add, health));
    return before;
  }
  std::string report() const {
    char* text = nullptr;
    EXPECT_EQ(nanhunt_report(dir_.path("killed").c_str(), NANHUNT_TEXT, &text, nullptr), NANHUNT_OK);
    const std::string all = text == nullptr ? "" : text;
    nanhunt_free(text);
    return all;
  }

  const std::array<float, 2> good_ = {1, 2};
  int reported_[2] = {-1, -1};
  pid_t child_ = -1;
};

TEST_F(CDeviceKill, a_killed_run_has_all_that_had_come_and_says_that_it_has_no_end) {
  begin(25);
  std::uint64_t come = 0;
  for (int step = 0; step < 25; ++step) come = next();
  ASSERT_EQ(come, 23u) << "the last two wait";
  kill_once_there_are(come);

  const RecordBatch all = read_right();

  EXPECT_THAT(all.ops, SizeIs(come));
  EXPECT_THAT(note_with(all, "lost"), IsEmpty());
  EXPECT_THAT(report(), HasSubstr("The trace has no clean end: the run is still going, or it was killed."));
}

TEST_F(CDeviceKill, at_whatever_moment_it_is_killed_it_has_what_had_come_by_then) {
  for (const std::uint64_t come : {0, 0, 1, 7, 40, 90, 390, 700}) {
    SCOPED_TRACE(come);
    std::filesystem::remove_all(dir_.path("killed"));
    begin(0);
    kill_once_there_are(come);
    if (!std::filesystem::exists(dir_.path("killed"))) continue;  // before it had begun
    const auto attempts = find_attempts(dir_.path("killed"));
    if (!attempts || attempts->empty()) continue;

    EXPECT_GE(read_right().ops.size(), come);
  }
}

}  // namespace
}  // namespace nanhunt::c_api_tests
