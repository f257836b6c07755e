// SPDX-License-Identifier: Apache-2.0
// A trace with a limit: what may go goes, what must stay stays, and a reader knows the one from a loss.
#include <gmock/gmock.h>

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "src/trace/segments/retention.h"
#include "tests/trace/damage/forge.h"
#include "tests/trace/long_run.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLimit = kMinMaxBytes;

std::uint64_t bytes_of(const std::string& dir) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().filename() != "run.json") bytes += entry.file_size();
  }
  return bytes;
}

class RetentionTest : public TraceTest {
 protected:
  // Records `steps` steps and returns the attempt's folder.
  std::string record(LongRun& run, std::uint32_t steps, const RetentionOptions& retention) {
    auto writer = TraceWriter::create(path("run"), info(), {.retention = retention});
    EXPECT_TRUE(writer.is_ok()) << writer.status().message();
    while (run.steps() < steps) {
      const Status status = (*writer)->write(run.next_batch());
      EXPECT_TRUE(status.is_ok()) << status.message();
      most_bytes_ = std::max(most_bytes_, bytes_of((*writer)->attempt_dir()));
      EXPECT_EQ((*writer)->bytes_written(), bytes_of((*writer)->attempt_dir()));
    }
    EXPECT_TRUE((*writer)->close().is_ok());
    return (*writer)->attempt_dir();
  }
  std::uint64_t most_bytes_ = 0;
};

struct Kept {
  std::map<std::uint32_t, int> ops_of_step;
  RetiredRecord retired;
  std::uint64_t rows = 0, dangling = 0;
};

Kept look(const ReadResult& result) {
  Kept kept;
  std::set<ValueId> values{0};
  for (const RecordBatch& b : result.batches) {
    for (const ValueRecord& value : b.values) {
      EXPECT_TRUE(values.insert(value.id).second) << value.id;
      kept.dangling += values.contains(value.base) ? 0 : 1;
    }
    for (const auto* args : {&b.inputs, &b.outputs}) {
      for (const OpArg& arg : *args) kept.dangling += values.contains(arg.value) ? 0 : 1;
    }
    for (const MarkRecord& mark : b.marks) kept.dangling += values.contains(mark.value) ? 0 : 1;
    for (const EvidenceRecord& row : b.evidence) kept.dangling += values.contains(row.value) ? 0 : 1;
    for (const HistogramRecord& row : b.histograms) kept.dangling += values.contains(row.value) ? 0 : 1;
    for (const OpRecord& op : b.ops) ++kept.ops_of_step[op.step];
    for (const RetiredRecord& row : b.retired) {
      kept.retired.steps += row.steps;
      kept.retired.anomalies += row.anomalies;
      kept.retired.ops += row.ops;
      kept.retired.values += row.values;
      kept.retired.other += row.other;
    }
  }
  return kept;
}

TEST_F(RetentionTest, a_run_within_its_limit_keeps_everything) {
  LongRun run(1);
  const std::string dir = record(run, 2000, {.max_bytes = kLimit});
  const ReadResult result = read(dir);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(result.health.rows_retired, 0u);
  EXPECT_EQ(result.all.ops.size(), run.ops());
}

TEST_F(RetentionTest, a_long_run_keeps_its_ends_every_anomaly_and_what_is_near_them_and_counts_the_rest) {
  // given far more steps than fit
  LongRun run(2);
  const RetentionOptions retention{
      .max_bytes = kLimit, .keep_first_steps = 10, .keep_last_steps = 50, .neighbourhood = 3};
  // when
  const std::string dir = record(run, 150'000, retention);
  // then
  EXPECT_LE(most_bytes_, kLimit);
  const ReadResult result = read(dir);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_TRUE(result.health.clean_end);
  EXPECT_EQ(result.health.chunks_lost, 0u);
  EXPECT_TRUE(result.health.problems.empty()) << result.health.problems[0];
  const Kept kept = look(result);
  const auto has = [&](std::uint32_t step) { return kept.ops_of_step.contains(step); };
  for (std::uint32_t step = 0; step < 10; ++step) EXPECT_TRUE(has(step)) << step;
  for (std::uint32_t step = run.steps() - 50; step < run.steps(); ++step) EXPECT_TRUE(has(step)) << step;
  ASSERT_GT(run.bad_steps().size(), 20u);
  for (const std::uint32_t bad : run.bad_steps()) {
    for (std::uint32_t step = bad < 3 ? 0 : bad - 3; step <= bad + 3 && step < run.steps(); ++step) {
      EXPECT_TRUE(has(step)) << step << " near " << bad;
    }
  }
  EXPECT_LT(kept.ops_of_step.size(), 75'000u);
  EXPECT_EQ(kept.dangling, 0u);
  EXPECT_EQ(kept.retired.anomalies, 0u);
  EXPECT_EQ(kept.retired.ops + result.all.ops.size(), run.ops());
  EXPECT_EQ(kept.retired.values + result.all.values.size(), run.values());
  EXPECT_EQ(kept.retired.steps + result.all.steps.size(), run.steps());
  EXPECT_EQ(result.health.steps_retired, kept.retired.steps);
  EXPECT_EQ(result.all.evidence.size(), run.bad_steps().size());
}

TEST_F(RetentionTest, a_run_that_is_bad_all_along_stays_within_its_limit_and_keeps_the_first_of_each_stretch) {
  LongRun run(3, {.bad_every = 1});
  const std::string dir = record(run, 60'000, {.max_bytes = kLimit});
  EXPECT_LE(most_bytes_, kLimit);
  const ReadResult result = read(dir);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  const Kept kept = look(result);
  EXPECT_TRUE(kept.ops_of_step.contains(run.bad_steps().front()));
  EXPECT_GT(kept.retired.anomalies, 0u) << "that bad steps went is said";
  EXPECT_EQ(kept.dangling, 0u);
  EXPECT_EQ(kept.retired.ops + result.all.ops.size(), run.ops());
}

TEST_F(RetentionTest, a_kill_at_any_point_of_a_rewrite_leaves_one_of_both_states_whole) {
  // given a trace and what it was before its last segments were retired: files as they stood at some moments
  LongRun run(4);
  auto writer = TraceWriter::create(path("run"), info(), {.retention = {.max_bytes = kLimit}});
  ASSERT_TRUE(writer.is_ok());
  const std::string dir = (*writer)->attempt_dir();
  const std::string saved = path("saved");
  std::vector<std::string> before;
  for (bool rewritten = false; !rewritten;) {
    fs::remove_all(saved);
    fs::create_directory(saved);
    before = segments(dir);
    for (const std::string& file : before) fs::create_hard_link(file, saved + "/" + fs::path(file).filename().string());
    ASSERT_TRUE((*writer)->write(run.next_batch()).is_ok());
    for (const std::string& file : before) rewritten = rewritten || !fs::exists(file);
  }
  const ReadResult after = read(dir);
  EXPECT_EQ(after.health.chunks_lost, 0u);
  EXPECT_GT(after.health.rows_retired, 0u);
  // when the kill came before the old segments were taken away, with a half written file besides
  save(dir + "/.000000.nht.tmp", Bytes(1000, std::byte{7}));
  int restored = 0;
  for (const std::string& file : before) {
    if (fs::exists(file)) continue;
    fs::rename(saved + "/" + fs::path(file).filename().string(), file);
    ++restored;
  }
  ASSERT_GT(restored, 0);
  // then they are passed over
  const ReadResult result = read(dir);
  EXPECT_EQ(result.health.chunks_lost, 0u);
  EXPECT_EQ(result.health.bytes_skipped, 0u);
  EXPECT_EQ(result.all.ops.size(), after.all.ops.size());
  EXPECT_EQ(result.health.segments, after.health.segments);
  EXPECT_EQ(result.health.clean_end, after.health.clean_end);
}

TEST_F(RetentionTest, damage_to_a_rewritten_segment_is_a_loss_all_the_same) {
  LongRun run(5);
  const std::string dir = record(run, 60'000, {.max_bytes = kLimit});
  const auto files = segments(dir);
  const Bytes whole = load(files[0]);
  ASSERT_GT(read(dir).health.rows_retired, 0u);
  // when its end is cut off, a payload is flipped, or it is gone
  Bytes cut = whole;
  cut.resize(chunks_of(whole).back().offset);
  save(files[0], cut);
  EXPECT_EQ(read(dir).health.chunks_lost, 1u);
  Bytes flipped = whole;
  flipped[chunks_of(whole)[2].offset + trace::kChunkHeaderBytes] ^= std::byte{1};
  save(files[0], flipped);
  EXPECT_GT(read(dir).health.chunks_lost, 0u);
  fs::remove(files[0]);
  const ReadResult gone = read(dir);
  EXPECT_EQ(gone.status.code(), StatusCode::kDamaged);
  EXPECT_GT(gone.health.chunks_lost, 0u);
}

TEST_F(RetentionTest, a_salvaged_copy_still_tells_what_was_retired) {
  LongRun run(6);
  const std::string dir = record(run, 60'000, {.max_bytes = kLimit});
  const ReadResult original = read(dir);
  TraceHealth health;
  ASSERT_TRUE(salvage_attempt(find_attempts(dir)->at(0), path("saved"), health).is_ok());
  const ReadResult copy = read(find_attempts(path("saved"))->at(0).dir);
  EXPECT_EQ(copy.health.steps_retired, original.health.steps_retired);
  EXPECT_GT(copy.health.rows_retired, 0u);
  EXPECT_EQ(copy.all.ops, original.all.ops);
}

// Growth of this process' peak memory while `body` runs, in KiB.
template <typename Body>
long peak_growth(Body&& body) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  body();
  getrusage(RUSAGE_SELF, &after);
  return after.ru_maxrss - before.ru_maxrss;
}

TEST_F(RetentionTest, a_million_steps_stay_within_disk_and_memory_and_lose_no_anomaly) {
  // given
  LongRun run(9, {.bad_every = 4000, .steps_a_batch = 700});
  const RetentionOptions retention{.max_bytes = 8'000'000};
  auto writer = TraceWriter::create(path("run"), info(), {.retention = retention});
  ASSERT_TRUE(writer.is_ok());
  const std::string dir = (*writer)->attempt_dir();
  // when
  const long grown = peak_growth([&] {
    while (run.steps() < 1'000'000) {
      ASSERT_TRUE((*writer)->write(run.next_batch()).is_ok());
      ASSERT_LE(bytes_of(dir), retention.max_bytes);
    }
    ASSERT_TRUE((*writer)->close().is_ok());
  });
  // then
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EXPECT_LT(grown, 1 << 20);  // what the sanitizer holds back counts as well
#else
  EXPECT_LT(grown, 48 << 10);
#endif
  const ReadResult result = read(dir);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  const Kept kept = look(result);
  ASSERT_GT(run.bad_steps().size(), 150u);
  for (const std::uint32_t bad : run.bad_steps()) {
    for (std::uint32_t step = bad < 2 ? 0 : bad - 2; step <= bad + 2 && step < run.steps(); ++step) {
      EXPECT_EQ(kept.ops_of_step.contains(step), true) << step << " near " << bad;
    }
  }
  EXPECT_EQ(kept.dangling, 0u);
  EXPECT_EQ(kept.retired.anomalies, 0u);
  EXPECT_EQ(kept.retired.ops + result.all.ops.size(), run.ops());
  EXPECT_EQ(kept.retired.values + result.all.values.size(), run.values());
  EXPECT_EQ(kept.retired.steps + result.all.steps.size(), run.steps());
  const std::size_t others = result.all.marks.size() + result.all.steps.size() + result.all.evidence.size() +
                             result.all.ends_of_life.size() + result.all.scaler.size() + result.all.histograms.size();
  EXPECT_EQ(kept.retired.other + others, run.other());
  EXPECT_TRUE(result.all.drops.empty());
}

TEST_F(RetentionTest, a_limit_too_small_for_a_trace_is_wrong_usage) {
  EXPECT_EQ(TraceWriter::create(path("run"), info(), {.retention = {.max_bytes = 1000}}).status().code(),
            StatusCode::kUsage);
  EXPECT_FALSE(fs::exists(path("run")));
}

TEST_F(RetentionTest, rows_that_do_not_fit_whatever_goes_are_refused_and_handed_back) {
  auto writer = TraceWriter::create(path("run"), info(), {.retention = {.max_bytes = kLimit}});
  ASSERT_TRUE(writer.is_ok());
  LongRun run(7);
  RecordBatch huge = run.next_batch();
  std::mt19937_64 random(8);
  for (int row = 0; row < 20; ++row) {  // 10 MB that do not compress
    SampleIdsRecord ids;
    for (int i = 0; i < 65536; ++i) ids.sample_ids.push_back(static_cast<std::int64_t>(random()));
    huge.sample_ids.push_back(std::move(ids));
  }
  RecordBatch unwritten;
  const Status status = (*writer)->write(huge, &unwritten);
  EXPECT_EQ(status.code(), StatusCode::kWriteFailed);
  EXPECT_THAT(status.message(), testing::HasSubstr("limit"));
  EXPECT_GT(unwritten.sample_ids.size(), 0u);
  EXPECT_LE(bytes_of((*writer)->attempt_dir()), kLimit);
}

TEST(BadSteps, stretches_are_found_with_their_neighbours) {
  trace::BadSteps bad;
  for (const std::uint32_t step : {5u, 6u, 7u, 20u, 6u, 12u}) bad.add(step);
  for (const std::uint32_t step : {5u, 6u, 7u, 12u, 20u}) EXPECT_TRUE(bad.near(step, 0)) << step;
  for (const std::uint32_t step : {4u, 8u, 11u, 13u, 19u, 21u, 0u, 4'000'000'000u}) EXPECT_FALSE(bad.near(step, 0));
  for (const std::uint32_t step : {3u, 4u, 8u, 9u, 10u, 22u}) EXPECT_TRUE(bad.near(step, 2)) << step;
  for (const std::uint32_t step : {2u, 15u, 17u, 23u}) EXPECT_FALSE(bad.near(step, 2)) << step;
  for (const std::uint32_t step : {5u, 12u, 20u}) EXPECT_TRUE(bad.begins(step)) << step;
  for (const std::uint32_t step : {6u, 7u, 4u, 21u}) EXPECT_FALSE(bad.begins(step)) << step;
}

TEST(BadSteps, more_stretches_than_are_kept_become_fewer_that_hold_more) {
  trace::BadSteps bad;
  for (std::uint32_t i = 0; i < 100'000; ++i) bad.add(10 * i);
  for (std::uint32_t i = 0; i < 100'000; ++i) ASSERT_TRUE(bad.near(10 * i, 0)) << i;
}

}  // namespace
}  // namespace nanhunt::trace_testing
