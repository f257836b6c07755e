// SPDX-License-Identifier: Apache-2.0
// Rotation: many segments read as one attempt, and each reads alone.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "src/trace/encoding/end_chunk.h"
#include "src/trace/record_kind.h"
#include "tests/trace/batch_text.h"
#include "tests/trace/damage/forge.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

using testing::Contains;
using testing::HasSubstr;

class Segments : public TraceTest {
 protected:
  void SetUp() override {
    TraceTest::SetUp();
    RandomBatches random(21);
    RecordBatch all;
    std::vector<RecordBatch> batches;
    for (int i = 0; i < 12; ++i) {
      batches.push_back(random.next(20));
      append_batch(batches.back(), all);
    }
    text_ = batch_text(all);
    strings_ = all.strings.size();
    dir_ = write_trace("run", batches, {.segment_bytes = 4000, .zstd_level = 1});
    ASSERT_GE(segments(dir_).size(), 4u);
  }

  std::string dir_, text_;
  std::size_t strings_ = 0;
};

TEST_F(Segments, an_attempt_in_many_segments_reads_as_one_without_repeated_rows) {
  const ReadResult result = read(dir_);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(batch_text(result.all), text_);
  EXPECT_EQ(result.health.segments, segments(dir_).size());
  EXPECT_TRUE(result.health.clean_end);
  EXPECT_TRUE(result.health.problems.empty());
}

TEST_F(Segments, each_segment_reads_alone_with_every_string_it_names) {
  for (const std::string& segment : segments(dir_)) {
    const ReadResult result = read(segment);
    EXPECT_TRUE(result.status.is_ok()) << segment << ": " << result.status.message();
    EXPECT_TRUE(result.health.clean_end) << segment;
    EXPECT_EQ(result.health.chunks_lost, 0u);
    std::set<StringId> known = {0};
    for (const RecordBatch& batch : result.batches) {
      for (const StringRecord& row : batch.strings) known.insert(row.id);
      for (const OpRecord& op : batch.ops) {
        EXPECT_TRUE(known.contains(op.module) && known.contains(op.op) && known.contains(op.call_site));
      }
      for (const MarkRecord& mark : batch.marks) EXPECT_TRUE(known.contains(mark.path));
    }
  }
}

TEST_F(Segments, a_missing_middle_segment_is_counted_and_its_strings_come_again) {
  const auto files = segments(dir_);
  const std::size_t lost = chunks_of(load(files[1])).size();
  std::filesystem::remove(files[1]);

  const ReadResult result = read(dir_);

  EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
  EXPECT_EQ(result.health.chunks_lost, lost);
  EXPECT_EQ(result.health.bytes_skipped, 0u);
  EXPECT_TRUE(result.health.clean_end);
  std::set<StringId> known;
  for (const StringRecord& row : result.all.strings) known.insert(row.id);
  EXPECT_EQ(known.size(), strings_);
}

TEST_F(Segments, a_missing_first_segment_is_counted) {
  const auto files = segments(dir_);
  const std::size_t lost = chunks_of(load(files[0])).size();
  std::filesystem::remove(files[0]);
  const ReadResult result = read(dir_);
  EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
  EXPECT_EQ(result.health.chunks_lost, lost);
}

TEST_F(Segments, a_missing_last_segment_is_told_from_a_clean_end) {
  std::filesystem::remove(segments(dir_).back());
  const ReadResult result = read(dir_);
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_FALSE(result.health.clean_end);
}

TEST_F(Segments, an_empty_last_segment_is_a_kill_between_two_not_damage) {
  save(dir_ + "/000999.nht", {});
  const ReadResult result = read(dir_);
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_FALSE(result.health.clean_end);
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("000999.nht: is empty")));
}

TEST_F(Segments, a_segment_of_another_attempt_is_left_out) {
  RunInfo other = info();
  other.pid = 1;
  auto writer = TraceWriter::create(path("other"), other);
  ASSERT_TRUE(writer.is_ok());
  ASSERT_TRUE((*writer)->close().is_ok());
  const Bytes foreign = load((*writer)->attempt_dir() + "/000000.nht");
  save(dir_ + "/000999.nht", foreign);

  const ReadResult result = read(dir_);

  EXPECT_EQ(batch_text(result.all), text_);
  EXPECT_EQ(result.health.bytes_skipped, foreign.size());
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("belongs to another attempt")));
}

TEST_F(Segments, a_segment_of_a_newer_version_between_others_is_left_out_and_named) {
  save(dir_ + "/000999.nht", file_header(2, 0));
  const ReadResult result = read(dir_);
  EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
  EXPECT_EQ(batch_text(result.all), text_);
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("format version 2.0")));
}

TEST_F(Segments, a_link_among_the_segments_is_not_followed) {
  const std::string outside = path("outside.nht");
  std::filesystem::rename(segments(dir_)[1], outside);
  std::filesystem::create_symlink(outside, dir_ + "/000001.nht");
  const ReadResult result = read(dir_);
  EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
  EXPECT_GT(result.health.chunks_lost, 0u);
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("symbolic link")));
}

TEST_F(Segments, a_file_in_the_way_of_the_next_segment_keeps_the_writer_in_the_current_one) {
  auto writer = TraceWriter::create(path("blocked"), info(), {.segment_bytes = 500, .zstd_level = 1});
  ASSERT_TRUE(writer.is_ok());
  save((*writer)->attempt_dir() + "/000001.nht", {});
  RandomBatches random(2);
  RecordBatch all;
  for (int i = 0; i < 4; ++i) {
    const RecordBatch batch = random.next(20);
    append_batch(batch, all);
    EXPECT_TRUE((*writer)->write(batch).is_ok());
  }
  ASSERT_TRUE((*writer)->close().is_ok());
  EXPECT_EQ(batch_text(read((*writer)->attempt_dir() + "/000000.nht").all), batch_text(all));
}

TEST_F(Segments, the_end_chunk_indexes_every_chunk_of_its_segment) {
  for (const std::string& file : segments(dir_)) {
    const Bytes bytes = load(file);
    const auto places = chunks_of(bytes);
    const ChunkPlace& end = places.back();
    ASSERT_EQ(end.header.type, trace::kEndType);
    trace::ChunkUnpacker unpacker;
    std::span<const std::byte> packed, plain;
    ASSERT_TRUE(unpacker.unpack(end.header,
                                std::span(bytes).subspan(end.offset + trace::kChunkHeaderBytes, end.header.stored_size),
                                packed, plain));
    trace::Scratch scratch;
    std::uint64_t cells = 1u << 20;
    trace::ColumnReader columns(scratch, packed, plain, cells);
    std::vector<trace::ChunkIndexRow> index;
    ASSERT_TRUE(trace::decode_index(columns, end.header.rows, index));
    ASSERT_EQ(index.size(), places.size() - 1);
    for (std::size_t i = 0; i < index.size(); ++i) {
      EXPECT_EQ(index[i].offset, places[i].offset);
      EXPECT_EQ(index[i].type, places[i].header.type);
      EXPECT_EQ(index[i].rows, places[i].header.rows);
      EXPECT_LE(index[i].keys.first, index[i].keys.last);
    }
  }
}

}  // namespace
}  // namespace nanhunt::trace_testing
