// SPDX-License-Identifier: Apache-2.0
// Children whose rows the parent takes over: all of them or none, once, and nothing of the parent's changes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/c_api/adapter_fixture.h"

namespace nanhunt::c_api_tests {
namespace {

namespace fs = std::filesystem;

int g_before = 0, g_in_parent = 0, g_in_child = 0;

class CFork : public CAdapter {
 protected:
  // A child that does `work` and leaves with its answer: the exit status.
  template <typename Work>
  int in_child(Work work, int keep = -1) {
    nanhunt_fork how{};
    how.struct_size = sizeof how;
    how.keep = keep;
    const auto pid = static_cast<pid_t>(nanhunt_recorder_fork(recorder_, &how));
    if (pid == 0) _exit(work());
    EXPECT_GT(pid, 0) << nanhunt_last_error();
    return status_of(pid);
  }
  static int status_of(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int end_child() { return nanhunt_recorder_end_child(recorder_) == NANHUNT_OK ? 0 : 1; }
  // y = log(x): y_ is bad, ok_ is not.
  int record_as_child() {
    const Words rows = log_row(x_.data(), y_.data(), 20);
    return record(rows) == NANHUNT_OK ? end_child() : 1;
  }
  fs::path segment_of_child() const {
    for (const auto& entry : fs::recursive_directory_iterator(folder_ + "/.replay.tmp")) {
      if (entry.path().extension() == ".nht") return entry.path();
    }
    return {};
  }
  void expect_refused(const std::string& why) {
    EXPECT_NE(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK);
    EXPECT_THAT(nanhunt_last_error(), HasSubstr(why));
    EXPECT_FALSE(fs::exists(folder_ + "/.replay.tmp"));
  }
  // The run goes on as if there had been no child.
  void expect_the_parents_alone() {
    ASSERT_EQ(record(log_row(x_.data(), ok_.data(), 30)), NANHUNT_OK);
    const RecordBatch all = close_and_read();
    ASSERT_THAT(all.ops, SizeIs(1));
    EXPECT_EQ(all.ops[0].seq, 0u);
    EXPECT_THAT(all.drops, IsEmpty());
  }

  std::array<float, 2> x_{1, 0}, ok_{0, 0}, y_{0, -std::numeric_limits<float>::infinity()};
};

TEST_F(CFork, rows_of_a_child_become_the_parents_and_numbers_go_on) {
  // Given an op of the parent's, which the child does not write again,
  ASSERT_EQ(record(log_row(x_.data(), ok_.data(), 10)), NANHUNT_OK);
  // when a child uses names of the parent's and new ones, and reads what the parent's op made,
  ASSERT_EQ(in_child([&] {
              Words row = {NANHUNT_ROW_OP, call("exp", {"self"}, {"out"}), 3, 0, NANHUNT_PHASE_FORWARD,
                           text("new.module"), 0};
              append(row, value(ok_.data(), 11));
              append(row, value(y_.data(), 21));
              return record(row) == NANHUNT_OK ? record_as_child() : 1;
            }),
            0);
  ASSERT_EQ(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << nanhunt_last_error();
  // then the parent goes on after it,
  EXPECT_EQ(nanhunt_recorder_next_seq(recorder_), 3u);
  EXPECT_EQ(nanhunt_recorder_anomalies(recorder_), 2u);
  EXPECT_EQ(nanhunt_recorder_bad_since(recorder_, 2), 1u);
  EXPECT_EQ(ops(), 3u);
  ASSERT_EQ(record(log_row(x_.data(), ok_.data(), 30)), NANHUNT_OK);
  const std::int64_t after = text("after");
  EXPECT_EQ(text("new.module"), after - 1) << "as in the child";
  // and the trace is as that of one process.
  const RecordBatch all = close_and_read();
  ASSERT_THAT(all.ops, SizeIs(4));
  for (std::size_t i = 0; i < all.ops.size(); ++i) EXPECT_EQ(all.ops[i].seq, i);
  EXPECT_EQ(all.inputs[1].value, all.outputs[0].value) << "what the parent's op made";
  std::vector<ValueId> ids;
  for (const auto& v : all.values) ids.push_back(v.id);
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end()) << "no value has two rows";
  EXPECT_THAT(all.evidence, SizeIs(2));
  const auto named = std::ranges::find(all.strings, std::string("new.module"), &nanhunt::StringRecord::text);
  ASSERT_NE(named, all.strings.end());
  EXPECT_EQ(all.ops[1].module, named->id);
}

TEST_F(CFork, a_child_of_many_ops_is_taken_over_whole) {
  constexpr int kOps = 9000;
  ASSERT_EQ(in_child([&] {
              for (int i = 0; i < kOps; ++i) {
                const float* const y = i % 100 == 0 ? y_.data() : ok_.data();
                if (record(log_row(x_.data(), y, 100 + 2 * i)) != NANHUNT_OK) return 1;
              }
              return end_child();
            }),
            0);
  ASSERT_EQ(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_EQ(nanhunt_recorder_anomalies(recorder_), static_cast<std::uint64_t>(kOps / 100));
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.ops, SizeIs(kOps));
  EXPECT_THAT(all.values, SizeIs(2 * kOps));
  EXPECT_FALSE(fs::exists(folder_ + "/.replay.tmp"));
}

TEST_F(CFork, nothing_is_taken_over_twice) {
  ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
  fs::copy(folder_ + "/.replay.tmp", dir_.path("kept"), fs::copy_options::recursive);
  ASSERT_EQ(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << nanhunt_last_error();
  fs::copy(dir_.path("kept"), folder_ + "/.replay.tmp", fs::copy_options::recursive);
  expect_refused("no child was forked, or its rows were taken over");
  EXPECT_THAT(close_and_read().ops, SizeIs(1));
}

TEST_F(CFork, a_child_that_is_killed_leaves_the_run_as_it_was) {
  ASSERT_EQ(in_child([&] {
              if (record(log_row(x_.data(), y_.data(), 20)) != NANHUNT_OK) return 1;
              if (nanhunt_recorder_flush(recorder_) != NANHUNT_OK) return 2;
              raise(SIGKILL);
              return 3;
            }),
            -SIGKILL);
  ASSERT_TRUE(fs::exists(segment_of_child()));
  expect_refused("has no end");
  expect_the_parents_alone();
}

TEST_F(CFork, a_child_that_crashes_before_it_records_leaves_the_run_as_it_was) {
  ASSERT_EQ(in_child([] { return 0; }), 0);
  expect_refused(".replay.tmp");
  expect_the_parents_alone();
}

TEST_F(CFork, a_damaged_file_is_not_taken_over) {
  for (const std::streamoff from_end : {200, 400, 600}) {
    ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
    const fs::path file = segment_of_child();
    ASSERT_FALSE(file.empty());
    std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(static_cast<std::streamoff>(fs::file_size(file)) - from_end);
    damaged.write("\x5a\xa5\x5a\xa5", 4);
    damaged.close();
    EXPECT_NE(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << from_end;
  }
  expect_the_parents_alone();
}

TEST_F(CFork, of_a_file_of_another_child_nothing_is_taken_over) {
  // Given a child's file whose names have other numbers than the parent's,
  ASSERT_EQ(in_child([&] {
              text("one");
              return record_as_child();
            }),
            0);
  fs::rename(folder_ + "/.replay.tmp", dir_.path("kept"));
  nanhunt_recorder_forget_child(recorder_);
  ASSERT_EQ(text("two"), 4);
  ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
  fs::remove_all(folder_ + "/.replay.tmp");
  fs::rename(dir_.path("kept"), folder_ + "/.replay.tmp");
  // when it is taken for that of the last child, then it is refused.
  expect_refused("is another");
  expect_the_parents_alone();
}

TEST_F(CFork, where_the_parent_has_recorded_meanwhile_nothing_is_taken_over) {
  ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
  ASSERT_EQ(record(log_row(x_.data(), ok_.data(), 30)), NANHUNT_OK);
  expect_refused("something was recorded since");
  EXPECT_THAT(close_and_read().ops, SizeIs(1));
}

TEST_F(CFork, a_child_that_is_forgotten_leaves_nothing) {
  ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
  ASSERT_EQ(nanhunt_recorder_forget_child(recorder_), NANHUNT_OK);
  EXPECT_FALSE(fs::exists(folder_ + "/.replay.tmp"));
  expect_the_parents_alone();
}

TEST_F(CFork, whoever_reads_a_run_passes_over_what_a_child_left) {
  ASSERT_EQ(record(log_row(x_.data(), ok_.data(), 10)), NANHUNT_OK);
  ASSERT_EQ(in_child([&] { return record_as_child(); }), 0);
  ASSERT_TRUE(fs::exists(segment_of_child()));
  // Given a parent that was killed before it took over: what a child left stays in the folder,
  fs::copy(folder_ + "/.replay.tmp", dir_.path("kept"), fs::copy_options::recursive);
  ASSERT_EQ(nanhunt_recorder_forget_child(recorder_), NANHUNT_OK);
  fs::copy(dir_.path("kept"), folder_ + "/.replay.tmp", fs::copy_options::recursive);
  // when the run is read, then there is one attempt, and the parent's op in it.
  const RecordBatch all = close_and_read();
  EXPECT_THAT(all.ops, SizeIs(1));
  const auto attempts = nanhunt::find_attempts(run_);
  ASSERT_TRUE(attempts.is_ok());
  EXPECT_THAT(*attempts, SizeIs(1));
}

TEST_F(CFork, a_child_ends_with_its_parent) {
  // Given a process that forks a child and is killed,
  nanhunt_recorder_close(recorder_);  // and with it its thread
  recorder_ = nullptr;
  int pipe_of[2];
  ASSERT_EQ(pipe(pipe_of), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    open();
    nanhunt_fork how{};
    how.struct_size = sizeof how;
    how.keep = pipe_of[1];
    const pid_t pid = static_cast<pid_t>(nanhunt_recorder_fork(recorder_, &how));
    if (pid == 0) {
      record(log_row(x_.data(), y_.data(), 20));
      nanhunt_recorder_flush(recorder_);
      const pid_t self = getpid();
      if (write(pipe_of[1], &self, sizeof self) != sizeof self) _exit(1);
    }
    for (;;) pause();
  }
  close(pipe_of[1]);
  pid_t child = 0;
  ASSERT_EQ(::read(pipe_of[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  waitpid(parent, nullptr, 0);
  // then the child ends as well: nobody holds the other end of the pipe.
  char more = 0;
  EXPECT_EQ(::read(pipe_of[0], &more, 1), 0);
  close(pipe_of[0]);
}

TEST_F(CFork, a_child_moves_no_position_and_writes_nothing_of_the_parents) {
  // Given a file that is read half way, one that is written, a pipe and memory that processes share,
  const std::string read_path = dir_.path("read"), written_path = dir_.path("written");
  std::ofstream(read_path) << "first second";
  const int reads = ::open(read_path.c_str(), O_RDWR);
  const int writes = ::open(written_path.c_str(), O_WRONLY | O_CREAT, 0600);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "kept", 4), 4);
  char half[6] = {};
  ASSERT_EQ(::read(reads, half, 6), 6);
  void* const memory = mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const shared = static_cast<int*>(memory);
  shared[2000] = 41;
  // when a child reads, writes and counts,
  ASSERT_EQ(in_child([&] {
              char rest[6] = {};
              if (::read(reads, rest, 6) != 6 || std::memcmp(rest, "second", 6) != 0) return 2;
              if (write(reads, " third", 6) != 6 || lseek(reads, -5, SEEK_CUR) != 13) return 3;
              if (::read(reads, rest, 5) != 5 || std::memcmp(rest, "third", 5) != 0) return 3;
              if (write(writes, "x", 1) != 1) return 4;
              if (::read(ends[0], rest, 4) > 0) return 5;
              if (shared[2000]++ != 41) return 6;
              return end_child();
            }),
            0);
  // then all of it is as it was.
  EXPECT_EQ(lseek(reads, 0, SEEK_CUR), 6);
  EXPECT_EQ(fs::file_size(written_path), 0u);
  EXPECT_EQ(fs::file_size(read_path), 12u);
  ASSERT_EQ(::read(ends[0], half, 4), 4);
  EXPECT_EQ(std::string(half, 4), "kept");
  EXPECT_EQ(shared[2000], 41);
  for (const int fd : {reads, writes, ends[0], ends[1]}) close(fd);
  munmap(shared, 3 * 4096);
  nanhunt_recorder_forget_child(recorder_);
}

TEST_F(CFork, the_callers_hooks_run_around_it) {
  nanhunt_fork how{};
  how.struct_size = sizeof how;
  how.keep = -1;
  how.before = [] { ++g_before; };
  how.in_parent = [] { ++g_in_parent; };
  how.in_child = [] { ++g_in_child; };
  const auto pid = static_cast<pid_t>(nanhunt_recorder_fork(recorder_, &how));
  if (pid == 0) _exit(g_before == 1 && g_in_parent == 0 && g_in_child == 1 ? 0 : 1);
  EXPECT_EQ(status_of(pid), 0);
  EXPECT_EQ(g_before, 1);
  EXPECT_EQ(g_in_parent, 1);
  EXPECT_EQ(g_in_child, 0);
  nanhunt_recorder_forget_child(recorder_);
}

TEST_F(CFork, a_fork_is_refused_while_rows_are_held) {
  ASSERT_EQ(nanhunt_recorder_hold(recorder_, NANHUNT_HOLD), NANHUNT_OK);
  nanhunt_fork how{};
  how.struct_size = sizeof how;
  how.keep = -1;
  EXPECT_EQ(nanhunt_recorder_fork(recorder_, &how), -1);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("rows are held"));
  EXPECT_EQ(nanhunt_recorder_fork(nullptr, &how), -1);
  EXPECT_EQ(nanhunt_recorder_fork(recorder_, nullptr), -1);
  EXPECT_EQ(nanhunt_recorder_end_child(nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_recorder_absorb_child(nullptr), NANHUNT_USAGE);
  EXPECT_NE(nanhunt_recorder_end_child(recorder_), NANHUNT_OK) << "this is no child";
  EXPECT_NE(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << "there is none";
}

TEST_F(CFork, a_thread_that_flushes_meanwhile_is_not_waited_for_in_the_child) {
  // Given another thread that flushes and counts all the time,
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      nanhunt_recorder_flush(recorder_);
      nanhunt_counters counters{};
      counters.struct_size = sizeof counters;
      nanhunt_recorder_counters(recorder_, &counters);
    }
  });
  // when children are forked one after the other, then each ends, and is taken over.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_child([&] { return record_as_child(); }), 0);
    EXPECT_EQ(nanhunt_recorder_absorb_child(recorder_), NANHUNT_OK) << nanhunt_last_error();
  }
  stop = true;
  busy.join();
  EXPECT_THAT(close_and_read().ops, SizeIs(20));
}

}  // namespace
}  // namespace nanhunt::c_api_tests
