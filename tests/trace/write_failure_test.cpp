// SPDX-License-Identifier: Apache-2.0
// A disk that is full and folders that cannot be written. Full: a file size limit, which fails a write half way as
// a full disk does.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>
#include <set>
#include <sstream>

#include "tests/trace/batch_text.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// No file of this process may grow past `bytes` while it lives.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit now = old_;
    now.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~ScopedFileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }
  ScopedFileLimit(const ScopedFileLimit&) = delete;
  ScopedFileLimit& operator=(const ScopedFileLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

class WriteFailure : public TraceTest {};

TEST_F(WriteFailure, a_full_disk_keeps_what_was_written_readable_and_later_rows_are_tried_again) {
  RandomBatches random(31);
  auto writer = TraceWriter::create(path("run"), info());
  ASSERT_TRUE(writer.is_ok());
  const RecordBatch before = random.next(30), during = random.next(30), after = random.next(30);
  ASSERT_TRUE((*writer)->write(before).is_ok());
  const std::uint64_t good = (*writer)->bytes_written();
  {
    const ScopedFileLimit full(good + 100);  // in the middle of a chunk
    const Status status = (*writer)->write(during);
    EXPECT_EQ(status.code(), StatusCode::kWriteFailed);
    EXPECT_THAT(status.message(), HasSubstr("000000.nht"));
    EXPECT_THAT(status.message(), HasSubstr("stays readable"));
    EXPECT_EQ((*writer)->bytes_written(), good);
  }
  EXPECT_EQ(fs::file_size((*writer)->attempt_dir() + "/000000.nht"), good) << "the torn chunk was cut off";
  const ReadResult early = read((*writer)->attempt_dir());
  EXPECT_TRUE(early.status.is_ok()) << early.status.message();
  EXPECT_EQ(batch_text(early.all), batch_text(before));

  ASSERT_TRUE((*writer)->write(after).is_ok());
  ASSERT_TRUE((*writer)->close().is_ok());

  const ReadResult result = read((*writer)->attempt_dir());
  EXPECT_EQ(result.status.code(), StatusCode::kDamaged) << "a reader must know that rows are missing";
  EXPECT_GT(result.health.chunks_lost, 0u);
  EXPECT_EQ(result.health.bytes_skipped, 0u);
  EXPECT_TRUE(result.health.clean_end);
  // Rows of the failed batch are gone, but its strings and layouts are not: later rows need them.
  RecordBatch expected;
  append_batch(before, expected);
  expected.strings.insert(expected.strings.end(), during.strings.begin(), during.strings.end());
  expected.layouts.insert(expected.layouts.end(), during.layouts.begin(), during.layouts.end());
  append_batch(after, expected);
  EXPECT_EQ(batch_text(result.all), batch_text(expected));
}

TEST_F(WriteFailure, a_disk_full_at_any_byte_loses_only_whole_chunks) {
  RandomBatches random(32);
  const std::vector<RecordBatch> batches = {random.next(4), random.next(4), random.next(4)};
  const std::uint64_t whole = load(write_trace("whole", batches) + "/000000.nht").size();
  const ReadResult reference = read(path("whole") + "/rank-00000/attempt-0");
  const std::string text = batch_text(reference.all);
  for (std::uint64_t limit = 3000; limit < whole; limit += 61) {
    const std::string run = "run-" + std::to_string(limit);
    auto writer = TraceWriter::create(path(run), info());
    ASSERT_TRUE(writer.is_ok()) << writer.status().message();
    bool failed = false;
    {
      const ScopedFileLimit full(limit);
      for (const RecordBatch& batch : batches) failed = !(*writer)->write(batch).is_ok() || failed;
      failed = !(*writer)->close().is_ok() || failed;
    }
    ASSERT_TRUE(failed) << limit;
    const ReadResult result = read((*writer)->attempt_dir());
    ASSERT_EQ(result.health.bytes_skipped, 0u) << limit;
    std::istringstream lines(batch_text(result.all));
    for (std::string line; std::getline(lines, line);) ASSERT_THAT(text, HasSubstr(line + "\n"));
  }
}

// Rows by table; names are tried again and so never lost.
std::vector<std::size_t> row_counts(const RecordBatch& b) {
  return {b.values.size(), b.ops.size(),          b.marks.size(),       b.sample_ids.size(), b.steps.size(),
          b.evidence.size(), b.ends_of_life.size(), b.experiments.size(), b.drops.size(),
          b.scaler.size(), b.histograms.size(), b.health.size(), b.norms.size(), b.unheard.size(), b.changed.size(),
          b.probes.size(), b.captures.size(), b.notes.size(), b.collectives.size(), b.kernels.size(),
          b.frames.size(), b.setup.size()};
}

TEST_F(WriteFailure, what_did_not_fit_and_what_is_in_the_file_add_up_to_what_was_given) {
  RandomBatches random(33);
  const RecordBatch small = random.next(4), big = random.next(60);
  const std::uint64_t whole = load(write_trace("whole", {small, big}) + "/000000.nht").size();
  RecordBatch given;
  append_batch(small, given);
  append_batch(big, given);
  bool partly = false;
  for (std::uint64_t limit = 3000; limit < whole; limit += 997) {
    auto writer = TraceWriter::create(path("run-" + std::to_string(limit)), info());
    ASSERT_TRUE(writer.is_ok()) << writer.status().message();
    RecordBatch unwritten;
    {
      const ScopedFileLimit full(limit);
      for (const RecordBatch* batch : {&small, &big}) {
        RecordBatch rest;
        if ((*writer)->write(*batch, &rest)) {
          EXPECT_EQ(row_counts(rest), row_counts({}));
        }
        append_batch(rest, unwritten);
        if (batch == &big) partly = partly || (!rest.values.empty() && rest.values.size() < big.values.size()) ||
                                    (rest.values.empty() && !rest.ops.empty());
      }
    }
    const ReadResult result = read((*writer)->attempt_dir());
    append_batch(result.all, unwritten);
    ASSERT_EQ(row_counts(unwritten), row_counts(given)) << limit;
  }
  EXPECT_TRUE(partly) << "no limit fell inside a batch";
}

TEST_F(WriteFailure, a_row_that_cannot_be_stored_is_handed_back_alone) {
  auto writer = TraceWriter::create(path("run"), info());
  ASSERT_TRUE(writer.is_ok());
  RecordBatch batch;
  batch.ops.resize(3);
  for (std::size_t i = 0; i < 3; ++i) batch.ops[i].seq = i;
  batch.ops[1].first_input = 7;  // of no inputs
  batch.ops[1].input_count = 1;
  RecordBatch unwritten;
  EXPECT_FALSE((*writer)->write(batch, &unwritten).is_ok());
  ASSERT_EQ(unwritten.ops.size(), 1u);
  EXPECT_EQ(unwritten.ops[0].seq, 1u);
  EXPECT_EQ(read((*writer)->attempt_dir()).all.ops.size(), 2u);
}

TEST_F(WriteFailure, no_op_is_in_the_file_without_its_values_whatever_byte_the_disk_was_full_at) {
  // given values that need much room and ops that need little
  RecordBatch batch;
  std::mt19937_64 random(34);
  for (ValueId id = 1; id <= 9000; ++id) {
    ValueRecord value;
    value.id = id;
    value.storage = random();
    value.has_stats = true;
    value.stats.level = StatsLevel::kSums;
    value.stats.sum = static_cast<double>(random());
    value.stats.sum_sq = static_cast<double>(random());
    batch.values.push_back(value);
    batch.outputs.push_back({id, 0, ArgRole::kRead});
    OpRecord op;
    op.seq = id - 1;
    op.first_output = static_cast<std::uint32_t>(id - 1);
    op.output_count = 1;
    batch.ops.push_back(op);
  }
  const std::uint64_t whole = load(write_trace("whole", {batch}) + "/000000.nht").size();
  bool in_the_middle = false;
  for (std::uint64_t limit = 100; limit < whole; limit += whole / 50) {
    auto writer = TraceWriter::create(path("run-" + std::to_string(limit)), info());
    ASSERT_TRUE(writer.is_ok()) << writer.status().message();
    // when the disk is full for one batch
    RecordBatch unwritten;
    {
      const ScopedFileLimit full(limit);
      EXPECT_EQ((*writer)->write(batch, &unwritten).code(), StatusCode::kWriteFailed);
    }
    ASSERT_TRUE((*writer)->close().is_ok());
    // then
    const ReadResult result = read((*writer)->attempt_dir());
    std::set<ValueId> values;
    for (const ValueRecord& value : result.all.values) values.insert(value.id);
    for (const OpArg& arg : result.all.outputs) ASSERT_TRUE(values.contains(arg.value)) << limit;
    EXPECT_EQ(result.all.ops.size() + unwritten.ops.size(), batch.ops.size());
    EXPECT_EQ(result.all.values.size() + unwritten.values.size(), batch.values.size());
    EXPECT_GT(result.health.chunks_lost, 0u);
    in_the_middle = in_the_middle || (!result.all.ops.empty() && !unwritten.ops.empty());
  }
  EXPECT_TRUE(in_the_middle);
}

TEST_F(WriteFailure, a_disk_full_at_the_start_gives_an_error_and_leaves_no_half_attempt) {
  const ScopedFileLimit full(20);
  const auto writer = TraceWriter::create(path("run"), info());
  EXPECT_EQ(writer.status().code(), StatusCode::kWriteFailed);
  EXPECT_TRUE(fs::is_empty(path("run") + "/rank-00000"));
}

TEST_F(WriteFailure, a_file_in_place_of_a_folder_is_named) {
  save(path("file"), {});
  for (const std::string& run : {path("file"), path("file") + "/below"}) {
    const auto writer = TraceWriter::create(run, info());
    EXPECT_EQ(writer.status().code(), StatusCode::kWriteFailed);
    EXPECT_THAT(writer.status().message(), HasSubstr(path("file")));
    EXPECT_THAT(writer.status().message(), HasSubstr("Choose a folder that you may write to."));
  }
}

TEST_F(WriteFailure, a_folder_where_nothing_may_be_created_is_named) {
  const auto writer = TraceWriter::create("/proc/nanhunt-run", info());
  EXPECT_EQ(writer.status().code(), StatusCode::kWriteFailed);
  EXPECT_THAT(writer.status().message(), HasSubstr("/proc/nanhunt-run"));
}

TEST_F(WriteFailure, an_empty_name_is_wrong_usage) {
  EXPECT_EQ(TraceWriter::create("", info()).status().code(), StatusCode::kUsage);
}

TEST_F(WriteFailure, files_get_the_mode_that_lets_others_read_them) {
  const mode_t old = ::umask(022);
  const std::string dir = write_trace("run", {});
  ::umask(old);
  EXPECT_EQ(fs::status(dir + "/000000.nht").permissions(), static_cast<fs::perms>(0644));
  EXPECT_EQ(fs::status(dir + "/run.json").permissions(), static_cast<fs::perms>(0644));
}

}  // namespace
}  // namespace nanhunt::trace_testing
