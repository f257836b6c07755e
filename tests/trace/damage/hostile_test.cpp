// SPDX-License-Identifier: Apache-2.0
// Malice: chunks whose checksums are right and whose contents lie, other versions, and things that are no trace.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include "src/trace/encoding/bytes.h"
#include "src/trace/encoding/crc32c.h"
#include "src/trace/encoding/limits.h"
#include "src/trace/record_kind.h"
#include "tests/trace/batch_text.h"
#include "tests/trace/damage/forge.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

using testing::Contains;
using testing::HasSubstr;
using trace::ChunkHeader;

class Hostile : public TraceTest {
 protected:
  ReadResult read_bytes(const Bytes& bytes) {
    save(path("segment.nht"), bytes);
    return read(path("segment.nht"));
  }

  // A lie, then a good chunk: the lie must be refused and the good chunk delivered.
  void expect_refused(const Bytes& lie) {
    const ReadResult result = read_bytes(file_header() + lie + good_drop(/*sequence=*/1));
    EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
    EXPECT_EQ(result.health.rows, 1u);
    ASSERT_EQ(result.all.drops.size(), 1u);
    EXPECT_EQ(result.all.drops[0].ops, 77u);
  }

  static Bytes good_drop(std::uint64_t sequence) {
    RecordBatch batch;
    batch.drops.push_back({.seq = 1, .ops = 77, .values = 0, .other = 0});
    return packed(trace::kDrops, batch, 1, sequence);
  }

  static Bytes packed(const trace::RecordKind& kind, const RecordBatch& batch, std::uint32_t rows,
                      std::uint64_t sequence = 0) {
    trace::ColumnWriter columns;
    kind.encode(batch, {0, kind.count(batch)}, columns);
    trace::ChunkPacker packer(1);
    ChunkHeader header;
    header.type = kind.type;
    header.rows = rows;
    header.sequence = sequence;
    const auto bytes = packer.pack(header, columns);
    return {bytes.begin(), bytes.end()};
  }
};

TEST_F(Hostile, a_zstd_frame_that_states_more_than_the_header_is_refused) {
  ChunkHeader header{.type = 11, .flags = trace::kFlagZstd, .rows = 1, .raw_size = 100};
  expect_refused(chunk(header, compressed(Bytes(100'000, std::byte{0}))));
}

TEST_F(Hostile, a_zstd_frame_that_states_less_or_no_size_is_refused) {
  ChunkHeader header{.type = 11, .flags = trace::kFlagZstd, .rows = 1, .raw_size = 5000};
  expect_refused(chunk(header, compressed(Bytes(100, std::byte{0}))));
  expect_refused(chunk(header, Bytes(40, std::byte{0x5a})));
}

TEST_F(Hostile, a_second_zstd_frame_behind_the_first_is_refused) {
  const Bytes frame = compressed(Bytes(3000, std::byte{7}));
  ChunkHeader header{.type = 11, .flags = trace::kFlagZstd, .rows = 1, .raw_size = 3000};
  expect_refused(chunk(header, frame + frame));
}

TEST_F(Hostile, a_bomb_beyond_the_caps_has_no_valid_header) {
  const Bytes bomb = compressed(Bytes(15u << 20, std::byte{0}));  // 15 MiB in about 500 bytes
  ChunkHeader header{.type = 11, .flags = trace::kFlagZstd, .rows = 1, .raw_size = 15u << 20};
  const ReadResult result = read_bytes(file_header() + chunk(header, bomb));
  EXPECT_EQ(result.health.rows, 0u);
  EXPECT_EQ(result.health.bytes_skipped, trace::kChunkHeaderBytes + bomb.size());
}

TEST_F(Hostile, sizes_that_contradict_each_other_or_the_caps_are_refused) {
  const Bytes payload(64, std::byte{0});
  const auto lie = [&](auto change) {
    ChunkHeader header{.type = 11, .rows = 1, .raw_size = 64};
    change(header);
    return chunk(header, payload);
  };
  expect_refused(lie([](ChunkHeader& h) { h.rows = 0xffffffffu; }));
  expect_refused(lie([](ChunkHeader& h) { h.rows = trace::kMaxRows; }));
  expect_refused(lie([](ChunkHeader& h) { h.raw_size = 0xffffffffu; }));
  expect_refused(lie([](ChunkHeader& h) { h.raw_size = 63; }));
  expect_refused(lie([](ChunkHeader& h) { h.plain_size = 65; }));
  expect_refused(lie([](ChunkHeader& h) { h.plain_size = 0xffffffffu; }));
  expect_refused(lie([](ChunkHeader& h) { h.sequence = ~std::uint64_t{0}; }));
}

TEST_F(Hostile, a_stored_size_beyond_the_file_does_not_swallow_what_follows) {
  ChunkHeader header{.type = 11, .rows = 1, .raw_size = 1u << 20, .stored_size = 1u << 20};
  Bytes lie(trace::kChunkHeaderBytes);
  trace::store_chunk_header(header, lie.data());
  expect_refused(lie);
}

TEST_F(Hostile, more_or_fewer_rows_than_the_payload_holds_are_refused) {
  for (const trace::RecordKind& kind : trace::record_kinds()) {
    RecordBatch batch = RandomBatches(4).next(12);
    const auto rows = static_cast<std::uint32_t>(kind.count(batch));
    ASSERT_GT(rows, 1u) << kind.name;
    for (const std::uint32_t lie : {0u, rows - 1, rows + 1, 65536u}) {
      SCOPED_TRACE(kind.name);
      expect_refused(packed(kind, batch, lie));
    }
  }
}

TEST_F(Hostile, enumerations_and_ids_out_of_range_are_refused) {
  const auto refuse = [&](const trace::RecordKind& kind, auto change) {
    RecordBatch batch = RandomBatches(5).next(6);
    change(batch);
    SCOPED_TRACE(kind.name);
    expect_refused(packed(kind, batch, static_cast<std::uint32_t>(kind.count(batch))));
  };
  refuse(trace::kOps, [](RecordBatch& b) { b.ops[0].phase = static_cast<Phase>(11); });
  refuse(trace::kOps, [](RecordBatch& b) { b.ops[0].compute_dtype = static_cast<DType>(200); });
  refuse(trace::kOps, [](RecordBatch& b) { b.ops[0].module = trace::kMaxTableId + 1; });
  refuse(trace::kOps, [](RecordBatch& b) { b.inputs[0].role = static_cast<ArgRole>(5); });
  refuse(trace::kOps, [](RecordBatch& b) { b.outputs[0].slot = 0xffffffffu; });
  refuse(trace::kSteps, [](RecordBatch& b) { b.steps[0].ending = static_cast<StepEnding>(6); });
  refuse(trace::kMarks, [](RecordBatch& b) { b.marks[0].kind = static_cast<TensorRole>(8); });
  refuse(trace::kLayouts, [](RecordBatch& b) { b.layouts[0].dtype = static_cast<DType>(10); });
  refuse(trace::kLayouts, [](RecordBatch& b) { b.layouts[0].sizes = {-1}; });
  refuse(trace::kLayouts, [](RecordBatch& b) { b.layouts[0].sizes = {1ll << 40, 1ll << 40}; });
  refuse(trace::kLayouts, [](RecordBatch& b) { b.layouts[0].id = 1u << 31; });
  refuse(trace::kStrings, [](RecordBatch& b) { b.strings[0].id = trace::kMaxTableId + 1; });
  refuse(trace::kValues, [](RecordBatch& b) { b.values[0].layout = trace::kMaxTableId + 1; });
  refuse(trace::kEvidence, [](RecordBatch& b) { b.evidence[0].operands = {{0xffffffffu, 1, 1, 1.0}}; });
}

TEST_F(Hostile, values_whose_shape_contradicts_itself_are_refused) {
  // Columns of one value: id, shape, links, back, then whatever the case needs.
  const auto value = [](std::uint64_t shape, std::uint64_t links, std::uint64_t back) {
    trace::ColumnWriter columns;
    const std::uint64_t id = 1, zero = 0;
    columns.column(&id, 1, trace::Coding::kDelta);
    for (const std::uint64_t field : {shape, links, back}) columns.column(&field, 1);
    for (int i = 0; i < 40; ++i) columns.column(&zero, 1);
    trace::ChunkPacker packer(1);
    const auto bytes = packer.pack({.type = 3, .rows = 1}, columns);
    return Bytes(bytes.begin(), bytes.end());
  };
  expect_refused(value(/*shape=*/4, 0, 0));           // non-finite counts without statistics
  expect_refused(value(/*shape=*/1 | 8, 0, 0));       // zeros below level counts
  expect_refused(value(/*shape=*/64 | 128, 0, 0));    // flushed twice
  expect_refused(value(/*shape=*/1, 1 << 3, 0));      // extrema below level counts
  expect_refused(value(/*shape=*/0, 128, 0));         // unknown link
  expect_refused(value(/*shape=*/0, 0, /*back=*/1));  // before the chunk
}

TEST_F(Hostile, unknown_types_and_flags_are_skipped_without_damage) {
  const Bytes payload(30, std::byte{0x11});
  const Bytes bytes = file_header(1, 7) + chunk({.type = 200, .rows = 12, .raw_size = 30, .sequence = 0}, payload) +
                      good_drop(1) +
                      chunk({.type = 11, .flags = 64, .rows = 1, .raw_size = 30, .sequence = 2}, payload) +
                      chunk({.type = 0, .rows = 1, .raw_size = 30, .sequence = 3}, payload);
  const ReadResult result = read_bytes(bytes);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(result.health.unknown_chunks, 3u);
  EXPECT_EQ(result.health.chunks, 4u);
  EXPECT_EQ(result.health.rows, 1u);
  EXPECT_FALSE(result.health.damaged());
}

TEST_F(Hostile, flags_that_may_be_ignored_are_ignored) {
  RecordBatch batch;
  batch.drops.push_back({.seq = 5, .ops = 6, .values = 7, .other = 8});
  trace::ColumnWriter columns;
  trace::kDrops.encode(batch, {0, 1}, columns);
  trace::ChunkPacker packer(1);
  const auto bytes = packer.pack({.type = 11, .flags = 0x8000, .rows = 1}, columns);
  const ReadResult result = read_bytes(file_header() + Bytes(bytes.begin(), bytes.end()));
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_EQ(batch_text(result.all), batch_text(batch));
}

TEST_F(Hostile, a_newer_minor_version_with_a_longer_header_is_read) {
  trace::FileHeader header;
  header.major = 1;
  header.minor = 99;
  header.header_size = 96;
  const auto start = trace::store_file_header(header);
  const ReadResult result = read_bytes(Bytes(start.begin(), start.end()) + Bytes(32, std::byte{0xee}) + good_drop(0));
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_EQ(result.health.rows, 1u);
}

TEST_F(Hostile, a_newer_major_version_is_unsupported_and_the_message_says_what_to_do) {
  for (const std::uint16_t major : {std::uint16_t{0}, std::uint16_t{2}, std::uint16_t{0xffff}}) {
    const ReadResult result = read_bytes(file_header(major, 4) + Bytes(500, std::byte{1}));
    EXPECT_EQ(result.status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(result.status.message(), HasSubstr("format version " + std::to_string(major) + ".4"));
    EXPECT_THAT(result.status.message(), HasSubstr("this build reads 1.x"));
    EXPECT_THAT(result.status.message(), HasSubstr("newer"));
    EXPECT_TRUE(result.batches.empty());
  }
}

TEST_F(Hostile, a_newer_major_version_whose_header_moved_is_still_told_from_damage) {
  Bytes bytes = file_header(2, 0);
  bytes[60] ^= std::byte{0xff};
  EXPECT_EQ(read_bytes(bytes + Bytes(500, std::byte{1})).status.code(), StatusCode::kUnsupported);
}

TEST_F(Hostile, what_is_no_trace_is_said_to_be_none) {
  const auto expect_not_a_trace = [&](const Bytes& bytes) {
    const ReadResult result = read_bytes(bytes);
    EXPECT_EQ(result.status.code(), StatusCode::kUnreadable);
    EXPECT_THAT(result.status.message(), HasSubstr("is not a nanhunt trace"));
    EXPECT_EQ(result.health.bytes_skipped, bytes.size());
  };
  expect_not_a_trace({std::byte{'x'}});
  expect_not_a_trace(Bytes(200'000, std::byte{0}));
  Bytes noise(300'000);
  std::mt19937_64 random(1);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  expect_not_a_trace(noise);
  std::string text = "{\"schema\": \"nanhunt.run\"}\n";
  const auto bytes = std::as_bytes(std::span(text));
  expect_not_a_trace({bytes.begin(), bytes.end()});
}

TEST_F(Hostile, an_empty_file_is_said_to_be_empty) {
  const ReadResult result = read_bytes({});
  EXPECT_EQ(result.status.code(), StatusCode::kUnreadable);
  EXPECT_THAT(result.status.message(), HasSubstr("is empty"));
}

TEST_F(Hostile, a_folder_or_a_pipe_in_place_of_a_segment_is_refused) {
  ASSERT_TRUE(std::filesystem::create_directories(path("attempt-0/000000.nht")));
  EXPECT_EQ(read(path("attempt-0")).status.code(), StatusCode::kUnreadable);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read(path("pipe")).status.code(), StatusCode::kUnreadable);
}

TEST_F(Hostile, many_headers_that_claim_the_same_large_payload_do_not_hold_the_reader_up) {
  // Each claims 12 MiB with a wrong checksum: believed, they would cost 12 MiB of checksumming apiece.
  ChunkHeader header{.type = 11, .rows = 1, .raw_size = 12u << 20, .stored_size = 12u << 20};
  Bytes bytes = file_header();
  for (std::uint64_t i = 0; i < 5000; ++i) {
    header.sequence = i;
    Bytes one(trace::kChunkHeaderBytes);
    trace::store_chunk_header(header, one.data());
    bytes = std::move(bytes) + one;
  }
  bytes.resize(bytes.size() + (12u << 20));
  const ReadResult result = read_bytes(bytes);
  EXPECT_EQ(result.health.chunks, 0u);
  EXPECT_EQ(result.health.bytes_skipped, bytes.size() - trace::kFileHeaderBytes);
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("the rest is given up")));
}

TEST_F(Hostile, a_number_far_ahead_makes_no_more_than_a_large_count) {
  const ReadResult result = read_bytes(file_header() + good_drop(std::uint64_t{1} << 62) + good_drop(3));
  EXPECT_EQ(result.health.chunks_lost, std::uint64_t{1} << 62);
  EXPECT_EQ(result.health.rows, 1u);
}

}  // namespace
}  // namespace nanhunt::trace_testing
