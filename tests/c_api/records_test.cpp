// SPDX-License-Identifier: Apache-2.0
// Records as an Arrow stream, read by hand as a careless caller does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/c_adapter.h"
#include "nanhunt/trace.h"
#include "src/c_api/tables/arrow_abi.h"
#include "tests/support/temp_dir.h"

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Records : public testing::Test {
 protected:
  // `steps` steps of one op each, log(x) in `module`.
  std::string write_run(std::uint32_t steps, const std::string& module = "fc1", std::uint32_t rank = 0) {
    nanhunt::RunInfo info;
    info.rank = rank;
    auto writer = nanhunt::TraceWriter::create(dir_.path("run"), info);
    EXPECT_TRUE(writer) << writer.status().message();
    std::uint64_t next = 1;
    for (std::uint32_t from = 0; from < steps; from += 1000) {
      nanhunt::RecordBatch batch;
      if (from == 0) {
        batch.strings = {{1, module}, {2, "log"}, {3, "self"}, {4, "out"}, {5, "alpha"}};
        batch.layouts = {{1, nanhunt::DType::kF16, {2, 3}, {3, 1}}};
      }
      for (std::uint32_t step = from; step < std::min(steps, from + 1000); ++step) add_step(batch, step, next);
      EXPECT_TRUE((*writer)->write(batch));
    }
    EXPECT_TRUE((*writer)->close());
    return (*writer)->attempt_dir();
  }
  static void add_step(nanhunt::RecordBatch& batch, std::uint32_t step, std::uint64_t& next) {
    nanhunt::ValueRecord value;
    value.id = next++;
    value.storage = value.id;
    value.layout = 1;
    value.producer = step;
    batch.values.push_back(value);
    nanhunt::OpRecord op;
    op.seq = step;
    op.step = step;
    op.module = 1;
    op.op = 2;
    op.first_input = static_cast<std::uint32_t>(batch.inputs.size());
    op.input_count = step % 2 + 1;
    for (std::uint32_t i = 0; i < op.input_count; ++i) {
      batch.inputs.push_back({step == 0 ? 0 : value.id - 1, 3, nanhunt::ArgRole::kRead});
    }
    op.first_output = static_cast<std::uint32_t>(batch.outputs.size());
    op.output_count = 1;
    batch.outputs.push_back({value.id, 4, nanhunt::ArgRole::kRead});
    op.first_scalar = static_cast<std::uint32_t>(batch.scalars.size());
    op.scalar_count = 1;
    batch.scalars.push_back({5, 0.5});
    batch.ops.push_back(op);
    nanhunt::StepRecord done;
    done.step = step;
    done.skipped = step % 3 == 0;
    done.loss = step;
    batch.steps.push_back(done);
  }

  ArrowArrayStream open(const char* kind) {
    ArrowArrayStream stream;
    std::memset(&stream, 0xff, sizeof stream);  // what was there before does not matter
    EXPECT_EQ(nanhunt_records(run_.c_str(), kind, &stream), NANHUNT_OK) << nanhunt_last_error();
    return stream;
  }
  static std::int64_t rows_of(ArrowArrayStream& stream) {
    std::int64_t rows = 0;
    for (;;) {
      ArrowArray batch;
      EXPECT_EQ(stream.get_next(&stream, &batch), 0) << stream.get_last_error(&stream);
      if (batch.release == nullptr) return rows;
      rows += batch.length;
      batch.release(&batch);
      EXPECT_EQ(batch.release, nullptr);
    }
  }

  nanhunt::testing_support::TempDir dir_;
  const std::string run_ = dir_.path("run");
};

std::string_view text_at(const ArrowArray& column, std::int64_t row) {
  const auto* offsets = static_cast<const std::int32_t*>(column.buffers[1]);
  const auto* data = static_cast<const char*>(column.buffers[2]);
  return {data + offsets[row], static_cast<std::size_t>(offsets[row + 1] - offsets[row])};
}
template <typename T>
T number_at(const ArrowArray& column, std::int64_t row) {
  return static_cast<const T*>(column.buffers[1])[row];
}
bool is_valid(const ArrowArray& column, std::int64_t row) {
  const auto* bits = static_cast<const std::uint8_t*>(column.buffers[0]);
  return bits == nullptr || (bits[row / 8] >> (row % 8) & 1) != 0;
}

TEST_F(Records, ops_come_with_names_and_what_went_in_and_out) {
  write_run(3);
  ArrowArrayStream stream = open("ops");
  ArrowSchema schema;
  ASSERT_EQ(stream.get_schema(&stream, &schema), 0);
  EXPECT_STREQ(schema.format, "+s");
  std::vector<std::string> names, formats;
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    names.emplace_back(schema.children[i]->name);
    formats.emplace_back(schema.children[i]->format);
  }
  EXPECT_THAT(names, ElementsAre("rank", "attempt", "seq", "step", "micro_batch", "phase", "module", "op", "call_site",
                                 "compute_dtype", "inputs", "outputs", "scalars"));
  EXPECT_THAT(formats, ElementsAre("I", "I", "L", "I", "I", "u", "u", "u", "u", "u", "+l", "+l", "+l"));
  const ArrowSchema& item = *schema.children[10]->children[0];
  EXPECT_STREQ(item.format, "+s");
  EXPECT_STREQ(item.children[4]->name, "shape");
  schema.release(&schema);
  EXPECT_EQ(schema.release, nullptr);

  ArrowArray batch;
  ASSERT_EQ(stream.get_next(&stream, &batch), 0);
  ASSERT_EQ(batch.length, 3);
  ASSERT_EQ(batch.n_children, 13);
  EXPECT_EQ(number_at<std::uint32_t>(*batch.children[3], 2), 2u);
  EXPECT_EQ(text_at(*batch.children[5], 0), "forward");
  EXPECT_EQ(text_at(*batch.children[6], 1), "fc1");
  EXPECT_EQ(text_at(*batch.children[7], 2), "log");
  EXPECT_FALSE(is_valid(*batch.children[8], 0));  // no call site is known
  const ArrowArray& inputs = *batch.children[10];
  const auto* ends = static_cast<const std::int32_t*>(inputs.buffers[1]);
  EXPECT_EQ((std::vector<std::int32_t>(ends, ends + 4)), (std::vector<std::int32_t>{0, 1, 3, 4}));
  const ArrowArray& args = *inputs.children[0];
  EXPECT_EQ(text_at(*args.children[0], 2), "self");
  EXPECT_FALSE(is_valid(*args.children[1], 0));
  EXPECT_EQ(number_at<std::uint64_t>(*args.children[1], 3), 2u);
  EXPECT_EQ(text_at(*args.children[3], 1), "fp16");
  EXPECT_EQ(number_at<double>(*batch.children[12]->children[0]->children[1], 0), 0.5);
  batch.release(&batch);
  EXPECT_EQ(rows_of(stream), 0);
  stream.release(&stream);
}

TEST_F(Records, every_kind_that_is_named_opens_and_a_wrong_one_is_refused_with_the_right_ones) {
  write_run(1);
  std::istringstream names(nanhunt_record_kinds());
  int kinds = 0;
  for (std::string name; names >> name; ++kinds) {
    ArrowArrayStream stream = open(name.c_str());
    ArrowSchema schema;
    EXPECT_EQ(stream.get_schema(&stream, &schema), 0);
    EXPECT_GT(schema.n_children, 2);
    schema.release(&schema);
    EXPECT_EQ(rows_of(stream), name == "ops" || name == "values" || name == "steps" ? 1 : 0) << name;
    stream.release(&stream);
  }
  EXPECT_EQ(kinds, 24);
  ArrowArrayStream stream;
  EXPECT_EQ(nanhunt_records(run_.c_str(), "opps", &stream), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("ops values marks"));
  EXPECT_EQ(stream.release, nullptr);
  EXPECT_EQ(nanhunt_records(run_.c_str(), nullptr, &stream), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_records(run_.c_str(), "ops", nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_records(dir_.path("none").c_str(), "ops", &stream), NANHUNT_NOT_FOUND);
}

struct Gathered {
  std::vector<std::int64_t> rows, batches;
  std::vector<std::string> columns;  // of the last batch
  std::int64_t most = -1;            // batches, before it asks to end; -1: all
};

std::int32_t gather(void* user, std::int32_t kind, ArrowSchema* schema, ArrowArray* batch) {
  auto& gathered = *static_cast<Gathered*>(user);
  gathered.rows.at(static_cast<std::size_t>(kind)) += batch->length;
  ++gathered.batches.at(static_cast<std::size_t>(kind));
  gathered.columns.clear();
  for (std::int64_t i = 0; i < schema->n_children; ++i) gathered.columns.emplace_back(schema->children[i]->name);
  schema->release(schema);
  batch->release(batch);
  return gathered.most >= 0 && gathered.most-- == 0 ? 1 : 0;
}

TEST_F(Records, several_kinds_come_in_one_reading_and_one_without_rows_as_an_empty_batch) {
  write_run(40000);
  Gathered gathered{.rows = {0, 0, 0}, .batches = {0, 0, 0}, .columns = {}};
  ASSERT_EQ(nanhunt_read_records(run_.c_str(), "steps scaler ops", gather, &gathered), NANHUNT_OK) << nanhunt_last_error();
  EXPECT_THAT(gathered.rows, ElementsAre(40000, 0, 40000));
  EXPECT_GT(gathered.batches[0], 2);
  EXPECT_EQ(gathered.batches[1], 1);
}

TEST_F(Records, a_reading_ends_when_it_is_asked_to_and_wrong_arguments_are_refused) {
  write_run(40000);
  Gathered gathered{.rows = {0}, .batches = {0}, .columns = {}, .most = 0};
  EXPECT_EQ(nanhunt_read_records(run_.c_str(), "steps", gather, &gathered), NANHUNT_USAGE);
  EXPECT_EQ(gathered.batches[0], 1);
  EXPECT_EQ(nanhunt_read_records(run_.c_str(), "steps opps", gather, &gathered), NANHUNT_USAGE);
  EXPECT_THAT(nanhunt_last_error(), HasSubstr("'opps'"));
  EXPECT_EQ(nanhunt_read_records(run_.c_str(), "steps", nullptr, nullptr), NANHUNT_USAGE);
  EXPECT_EQ(nanhunt_read_records(dir_.path("none").c_str(), "steps", gather, &gathered), NANHUNT_NOT_FOUND);
}

TEST_F(Records, ops_that_gave_a_bad_number_are_rows_of_their_own_and_say_whether_they_read_one) {
  nanhunt::RunInfo info;
  auto writer = nanhunt::TraceWriter::create(dir_.path("run"), info);
  ASSERT_TRUE(writer) << writer.status().message();
  nanhunt::RecordBatch batch;
  batch.strings = {{1, "fc1"}, {2, "log"}, {3, "self"}, {4, "out"}, {5, "alpha"}};
  batch.layouts = {{1, nanhunt::DType::kF16, {2, 3}, {3, 1}}};
  std::uint64_t next = 1;
  for (std::uint32_t step = 0; step < 4; ++step) add_step(batch, step, next);
  for (const std::size_t bad : {1, 2}) {  // the third is made of the second
    batch.values[bad].has_stats = true;
    batch.values[bad].stats.level = nanhunt::StatsLevel::kCounts;
    batch.values[bad].stats.any_nonfinite = true;
    batch.values[bad].stats.numel = 6;
    batch.values[bad].stats.nan = 1;
    batch.values[bad].stats.pos_inf = 2;
  }
  ASSERT_TRUE((*writer)->write(batch));
  ASSERT_TRUE((*writer)->close());
  ArrowArrayStream stream = open("bad_ops");
  ArrowSchema schema;
  ASSERT_EQ(stream.get_schema(&stream, &schema), 0);
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < schema.n_children; ++i) names.emplace_back(schema.children[i]->name);
  schema.release(&schema);
  EXPECT_THAT(names, ElementsAre("rank", "attempt", "step", "micro_batch", "seq", "phase", "module", "op", "call_site",
                                 "compute_dtype", "nan", "pos_inf", "neg_inf", "read_bad", "is_collective"));
  ArrowArray rows;
  ASSERT_EQ(stream.get_next(&stream, &rows), 0);
  ASSERT_NE(rows.release, nullptr);
  ASSERT_EQ(rows.length, 2);
  EXPECT_EQ(number_at<std::uint32_t>(*rows.children[2], 0), 1u);
  EXPECT_EQ(number_at<std::int64_t>(*rows.children[11], 1), 2);
  const auto read_bad = static_cast<const std::uint8_t*>(rows.children[13]->buffers[1])[0];
  EXPECT_EQ(read_bad & 3, 2);  // the first began it
  rows.release(&rows);
  stream.release(&stream);
}

TEST_F(Records, a_long_run_comes_in_many_batches_of_bounded_size) {
  write_run(40000);
  ArrowArrayStream stream = open("steps");
  std::int64_t rows = 0, batches = 0, skipped = 0;
  for (;; ++batches) {
    ArrowArray batch;
    ASSERT_EQ(stream.get_next(&stream, &batch), 0);
    if (batch.release == nullptr) break;
    EXPECT_LE(batch.length, 16384);
    for (std::int64_t i = 0; i < batch.length; ++i) {
      EXPECT_EQ(number_at<std::uint32_t>(*batch.children[2], i), static_cast<std::uint32_t>(rows + i));
      skipped += static_cast<const std::uint8_t*>(batch.children[3]->buffers[1])[i / 8] >> (i % 8) & 1;
    }
    rows += batch.length;
    batch.release(&batch);
  }
  EXPECT_EQ(rows, 40000);
  EXPECT_EQ(skipped, 13334);
  EXPECT_GT(batches, 2);
  stream.release(&stream);
}

TEST_F(Records, a_stream_can_be_left_at_any_time_and_twice) {
  write_run(40000);
  for (int taken = 0; taken < 4; ++taken) {
    ArrowArrayStream stream = open("steps");
    for (int i = 0; i < taken; ++i) {
      ArrowArray batch;
      ASSERT_EQ(stream.get_next(&stream, &batch), 0);
      batch.release(&batch);
    }
    auto* const release = stream.release;
    stream.release(&stream);
    EXPECT_EQ(stream.release, nullptr);
    release(&stream);
    release(nullptr);
  }
}

TEST_F(Records, what_is_asked_of_it_after_its_end_or_release_does_no_harm) {
  write_run(2);
  ArrowArrayStream stream = open("steps");
  EXPECT_EQ(rows_of(stream), 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rows_of(stream), 0);
  const ArrowArrayStream before = stream;
  stream.release(&stream);
  ArrowArray batch;
  ArrowSchema schema;
  EXPECT_NE(before.get_next(&stream, &batch), 0);
  EXPECT_NE(before.get_schema(&stream, &schema), 0);
  EXPECT_EQ(before.get_last_error(&stream), nullptr);
}

TEST_F(Records, a_batch_and_its_columns_outlive_the_stream) {
  write_run(5);
  ArrowArrayStream stream = open("ops");
  ArrowArray batch;
  ASSERT_EQ(stream.get_next(&stream, &batch), 0);
  stream.release(&stream);
  // given a column that was taken over: the batch no longer releases it
  ArrowArray column = *batch.children[7];
  batch.children[7]->release = nullptr;
  batch.release(&batch);
  EXPECT_EQ(text_at(column, 4), "log");
  column.release(&column);
}

TEST_F(Records, names_of_a_hostile_trace_become_valid_text) {
  write_run(1, "\xff\x1b[31m\xc3");
  ArrowArrayStream stream = open("ops");
  ArrowArray batch;
  ASSERT_EQ(stream.get_next(&stream, &batch), 0);
  EXPECT_EQ(text_at(*batch.children[6], 0), "\\xff\\x1b[31m\\xc3");
  batch.release(&batch);
  stream.release(&stream);
}

TEST_F(Records, all_ranks_are_read_and_of_each_the_newest_attempt) {
  write_run(3, "old", 0);
  write_run(2, "fc1", 0);
  write_run(4, "fc1", 1);
  ArrowArrayStream stream = open("ops");
  std::array<int, 2> rows = {};
  for (;;) {
    ArrowArray batch;
    ASSERT_EQ(stream.get_next(&stream, &batch), 0);
    if (batch.release == nullptr) break;
    for (std::int64_t i = 0; i < batch.length; ++i) {
      ++rows.at(number_at<std::uint32_t>(*batch.children[0], i));
      EXPECT_EQ(text_at(*batch.children[6], i), "fc1");
    }
    batch.release(&batch);
  }
  stream.release(&stream);
  EXPECT_THAT(rows, ElementsAre(2, 4));
}

TEST_F(Records, a_damaged_trace_gives_what_is_good_and_no_trace_an_error_in_words) {
  const std::string segment = write_run(20000) + "/000000.nht";
  std::filesystem::resize_file(segment, std::filesystem::file_size(segment) * 2 / 3);
  ArrowArrayStream stream = open("steps");
  EXPECT_GT(rows_of(stream), 5000);
  stream.release(&stream);
  std::ofstream(segment, std::ios::trunc) << "this is no trace, but a text that is long enough to be looked at";
  stream = open("steps");
  ArrowArray batch;
  EXPECT_NE(stream.get_next(&stream, &batch), 0);
  EXPECT_EQ(batch.release, nullptr);
  EXPECT_THAT(stream.get_last_error(&stream), HasSubstr("is not a nanhunt trace"));
  EXPECT_NE(stream.get_next(&stream, &batch), 0);  // and goes on saying so
  stream.release(&stream);
}

TEST_F(Records, flipped_bytes_never_do_more_than_lose_rows) {
  const std::string segment = write_run(3000) + "/000000.nht";
  std::ifstream in(segment, std::ios::binary);
  std::stringstream whole;
  whole << in.rdbuf();
  const std::string good = whole.str();
  std::uint64_t state = 7;
  for (int round = 0; round < 40; ++round) {
    std::string bad = good;
    for (int i = 0; i < 8; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bad[(state >> 20) % bad.size()] = static_cast<char>(state >> 50);
    }
    std::ofstream(segment, std::ios::binary | std::ios::trunc) << bad;
    for (const char* kind : {"ops", "values", "steps"}) {
      ArrowArrayStream stream = open(kind);
      for (ArrowArray batch; stream.get_next(&stream, &batch) == 0 && batch.release != nullptr;) batch.release(&batch);
      stream.release(&stream);
    }
  }
}

}  // namespace
