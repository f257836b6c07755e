// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <limits>
#include <map>
#include <set>

#include "src/trace/encoding/limits.h"
#include "tests/trace/batch_text.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

using testing::HasSubstr;

class RoundTrip : public TraceTest {
 protected:
  static std::string text_of(const std::vector<RecordBatch>& batches) {
    RecordBatch all;
    for (const RecordBatch& batch : batches) append_batch(batch, all);
    return batch_text(all);
  }
};

TEST_F(RoundTrip, random_batches_come_back_bit_for_bit) {
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    RandomBatches random(seed);
    std::vector<RecordBatch> batches;
    for (std::size_t rows : {3u, 40u, 0u, 700u}) batches.push_back(random.next(rows));

    const std::string dir = write_trace("run-" + std::to_string(seed), batches);
    const ReadResult result = read(dir);

    ASSERT_TRUE(result.status.is_ok()) << result.status.message();
    ASSERT_EQ(batch_text(result.all), text_of(batches)) << "seed " << seed;
    EXPECT_TRUE(result.health.clean_end);
    EXPECT_FALSE(result.health.damaged());
    EXPECT_TRUE(result.health.problems.empty());
    EXPECT_EQ(result.health.bytes, load(dir + "/000000.nht").size());
  }
}

TEST_F(RoundTrip, a_batch_that_fits_one_frame_comes_back_as_one_batch) {
  RandomBatches random(1);
  const std::vector<RecordBatch> batches = {random.next(50), random.next(50)};

  const ReadResult result = read(write_trace("run", batches));

  ASSERT_EQ(result.batches.size(), 2u);
  EXPECT_EQ(batch_text(result.batches[0]), batch_text(batches[0]));
  EXPECT_EQ(batch_text(result.batches[1]), batch_text(batches[1]));
}

TEST_F(RoundTrip, an_attempt_without_rows_is_clean_and_empty) {
  const ReadResult result = read(write_trace("run", {RecordBatch{}}));
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_TRUE(result.batches.empty());
  EXPECT_TRUE(result.health.clean_end);
  EXPECT_EQ(result.health.rows, 0u);
}

TEST_F(RoundTrip, what_if_and_histogram_are_not_stored_and_the_level_says_so) {
  RecordBatch batch;
  ValueRecord value;
  value.id = 1;
  value.has_stats = true;
  value.stats.level = StatsLevel::kHistogram;
  value.stats.numel = 4;
  value.stats.sum = 2.5;
  value.stats.what_if[0].overflow = 3;
  value.stats.histogram = {1, 2};
  batch.values.push_back(value);

  const ReadResult result = read(write_trace("run", {batch}));

  ASSERT_EQ(result.all.values.size(), 1u);
  const TensorStats& stats = result.all.values[0].stats;
  EXPECT_EQ(stats.level, StatsLevel::kSums);
  EXPECT_EQ(stats.sum, 2.5);
  EXPECT_EQ(stats.what_if[0].overflow, 0);
  EXPECT_TRUE(stats.histogram.empty());
}

TEST_F(RoundTrip, op_ranges_that_overlap_or_leave_gaps_come_back_as_the_same_arguments) {
  RecordBatch batch;
  for (ValueId id = 1; id <= 6; ++id) batch.inputs.push_back({id, 0, ArgRole::kRead});
  OpRecord op;
  op.first_input = 3;
  op.input_count = 2;
  batch.ops.push_back(op);
  op.seq = 1;
  op.first_input = 2;
  op.input_count = 3;
  op.first_output = 4'000'000'000u;  // of no length, so never looked at
  batch.ops.push_back(op);

  const ReadResult result = read(write_trace("run", {batch}));

  ASSERT_EQ(result.batches.size(), 1u);
  EXPECT_EQ(batch_text(result.batches[0]), batch_text(batch));
  EXPECT_EQ(result.batches[0].inputs.size(), 5u);
}

// A batch as a training loop makes it: ids and seqs ascend, marks and releases lie between ops.
RecordBatch long_batch(std::size_t ops) {
  RecordBatch batch;
  ValueId next = 1;
  for (std::size_t i = 0; i < ops; ++i) {
    OpRecord op;
    op.seq = i;
    op.step = static_cast<std::uint32_t>(i / 50);
    op.first_input = static_cast<std::uint32_t>(batch.inputs.size());
    op.input_count = 1;
    batch.inputs.push_back({next > 3 ? next - 3 : 0, 0, ArgRole::kRead});
    op.first_output = static_cast<std::uint32_t>(batch.outputs.size());
    op.output_count = i % 1000 == 7 ? 3000 : 1;
    for (std::uint32_t k = 0; k < op.output_count; ++k) {
      ValueRecord value;
      value.id = next;
      value.storage = next;
      value.producer = i;
      batch.values.push_back(value);
      batch.outputs.push_back({next++, 0, ArgRole::kRead});
    }
    batch.ops.push_back(op);
    if (i % 50 == 49) {
      for (int k = 0; k < 150; ++k) {
        batch.marks.push_back({i + 1, op.step, 0, TensorRole::kParameter, 0, next - 1});
        batch.ends_of_life.push_back({next - 1, i + 1});
      }
      batch.steps.push_back({op.step, false, 0.5, 0.1, 1, i + 1, 7});
      batch.evidence.push_back({i, next - 1, 0, 1.0, {}});
    }
  }
  return batch;
}

TEST_F(RoundTrip, a_batch_too_big_for_one_frame_is_cut_in_time) {
  const RecordBatch batch = long_batch(9000);

  const ReadResult result = read(write_trace("run", {batch}));

  ASSERT_EQ(batch_text(result.all), batch_text(batch));
  ASSERT_GT(result.batches.size(), 3u);
  std::set<ValueId> known = {0};
  std::uint64_t next_seq = 0;
  for (const RecordBatch& part : result.batches) {
    EXPECT_LE(part.values.size(), trace::kFrameRows);
    EXPECT_LE(part.ops.size(), trace::kFrameRows);
    EXPECT_LE(part.marks.size(), trace::kFrameRows);
    for (const ValueRecord& value : part.values) known.insert(value.id);
    for (const OpArg& arg : part.inputs) ASSERT_TRUE(known.contains(arg.value)) << arg.value;
    for (const OpArg& arg : part.outputs) ASSERT_TRUE(known.contains(arg.value)) << arg.value;
    const std::uint64_t begin = next_seq;
    if (!part.ops.empty()) next_seq = part.ops.back().seq + 1;
    for (const MarkRecord& mark : part.marks) {
      EXPECT_GE(mark.seq, begin);  // not after an op that followed it
      EXPECT_LE(mark.seq, next_seq) << "before an op that it followed";
      EXPECT_TRUE(known.contains(mark.value));
    }
    for (const EndOfLifeRecord& end : part.ends_of_life) {
      EXPECT_GE(end.seq, begin);
      EXPECT_LE(end.seq, next_seq);
    }
    for (const EvidenceRecord& row : part.evidence) EXPECT_LT(row.seq, next_seq);
  }
}

TEST_F(RoundTrip, values_out_of_order_still_come_no_later_than_their_op) {
  RecordBatch batch = long_batch(9000);
  std::swap(batch.values.front(), batch.values.back());

  const ReadResult result = read(write_trace("run", {batch}));

  ASSERT_EQ(batch_text(result.all), batch_text(batch));
  std::set<ValueId> known = {0};
  for (const RecordBatch& part : result.batches) {
    for (const ValueRecord& value : part.values) known.insert(value.id);
    for (const OpArg& arg : part.outputs) ASSERT_TRUE(known.contains(arg.value));
  }
}

TEST_F(RoundTrip, long_texts_and_long_lists_are_split_over_chunks) {
  RecordBatch batch;
  for (StringId id = 1; id <= 200; ++id) {
    batch.strings.push_back({id, std::string(60'000, static_cast<char>('a' + id % 26))});
  }
  for (std::uint32_t step = 0; step < 40; ++step) {
    SampleIdsRecord row{step, 0, std::vector<std::int64_t>(50'000)};
    for (std::size_t i = 0; i < row.sample_ids.size(); ++i) {
      row.sample_ids[i] = static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15u);
    }
    batch.sample_ids.push_back(std::move(row));
  }

  const ReadResult result = read(write_trace("run", {batch}));

  ASSERT_TRUE(result.status.is_ok());
  EXPECT_TRUE(result.all == batch);
}

TEST_F(RoundTrip, a_text_over_the_limit_is_cut_and_the_rest_kept) {
  RecordBatch batch;
  batch.strings.push_back({1, std::string(trace::kMaxTextBytes + 10, 'x')});
  batch.strings.push_back({2, "next"});
  const ReadResult result = read(write_trace("run", {batch}));
  ASSERT_EQ(result.all.strings.size(), 2u);
  EXPECT_EQ(result.all.strings[0].text, std::string(trace::kMaxTextBytes, 'x'));
  EXPECT_EQ(result.all.strings[1].text, "next");
}

TEST_F(RoundTrip, rows_that_cannot_be_stored_are_named_and_the_others_kept) {
  RecordBatch batch;
  OpRecord op;
  op.first_input = 5;
  op.input_count = 1;  // there are no inputs
  batch.ops.push_back(op);
  op = {};
  op.seq = 1;
  batch.ops.push_back(op);
  batch.layouts.push_back({1, DType::kF16, {-1}, {1}});
  batch.layouts.push_back({2, DType::kF16, {8}, {1}});
  batch.layouts.push_back({3, DType::kF16, {std::numeric_limits<std::int64_t>::max(), 4}, {}});
  batch.strings.push_back({0xffffffffu, "too high"});
  auto writer = TraceWriter::create(path("run"), info());
  ASSERT_TRUE(writer.is_ok());

  const Status status = (*writer)->write(batch);

  EXPECT_EQ(status.code(), StatusCode::kUsage);
  EXPECT_THAT(status.message(), HasSubstr("cannot be stored"));
  ASSERT_TRUE((*writer)->close().is_ok());
  const ReadResult result = read((*writer)->attempt_dir());
  ASSERT_TRUE(result.status.is_ok());
  ASSERT_EQ(result.all.ops.size(), 1u);
  EXPECT_EQ(result.all.ops[0].seq, 1u);
  ASSERT_EQ(result.all.layouts.size(), 1u);
  EXPECT_EQ(result.all.layouts[0].id, 2u);
  EXPECT_TRUE(result.all.strings.empty());
}

TEST_F(RoundTrip, equal_batches_give_equal_files) {
  RandomBatches first(9), second(9);
  const std::string a = write_trace("a", {first.next(300)}), b = write_trace("b", {second.next(300)});
  EXPECT_EQ(load(a + "/000000.nht"), load(b + "/000000.nht"));
}

TEST_F(RoundTrip, writing_after_close_is_refused_and_closing_twice_is_fine) {
  auto writer = TraceWriter::create(path("run"), info());
  ASSERT_TRUE(writer.is_ok());
  ASSERT_TRUE((*writer)->close().is_ok());
  EXPECT_TRUE((*writer)->close().is_ok());
  EXPECT_EQ((*writer)->write({}).code(), StatusCode::kUsage);
}

TEST(RecordBatch, is_empty_only_without_rows_and_clear_empties_it) {
  RecordBatch batch;
  EXPECT_TRUE(batch.empty());
  batch = RandomBatches(3).next(10);
  EXPECT_FALSE(batch.empty());
  batch.clear();
  EXPECT_TRUE(batch.empty());
  EXPECT_TRUE(batch == RecordBatch{});
}

}  // namespace
}  // namespace nanhunt::trace_testing
