// SPDX-License-Identifier: Apache-2.0
// Accidents: what a reader delivers of a damaged segment, and whether its account of the loss is exact.
#include <gmock/gmock.h>

#include <algorithm>
#include <sstream>

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

class Damage : public TraceTest {
 protected:
  void SetUp() override {
    TraceTest::SetUp();
    RandomBatches random(13);
    const std::vector<RecordBatch> batches = {random.next(2), random.next(2)};
    good_ = load(write_trace("run", batches) + "/000000.nht");
    places_ = chunks_of(good_);
    ASSERT_GT(places_.size(), 15u);
    // What each chunk delivers by itself, for "nothing but what is in the file".
    const ReadResult whole = read_bytes(good_);
    text_ = batch_text(whole.all);
    rows_ = whole.health.rows;
  }

  ReadResult read_bytes(const Bytes& bytes) {
    save(path("segment.nht"), bytes);
    return read(path("segment.nht"));
  }

  // Every line delivered is a line of the undamaged trace, in its order; returns how many.
  std::size_t expect_subsequence(const ReadResult& result) {
    std::size_t lines = 0;
    for (const RecordBatch& batch : result.batches) {
      std::istringstream text(batch_text(batch));
      for (std::string line; std::getline(text, line); ++lines) {
        EXPECT_THAT(text_, HasSubstr(line + "\n"));
      }
    }
    return lines;
  }

  static void expect_account(const ReadResult& result, const Bytes& bytes) {
    EXPECT_EQ(result.health.bytes, bytes.size());
    EXPECT_EQ(result.status.code() == StatusCode::kDamaged, result.health.damaged());
    EXPECT_LE(result.health.problems.size(), trace::kMaxProblems);
    EXPECT_TRUE(!result.health.damaged() || !result.health.problems.empty());
  }

  Bytes without(std::size_t chunk) const {
    const ChunkPlace& place = places_[chunk];
    Bytes bytes(good_.begin(), good_.begin() + place.offset);
    bytes.insert(bytes.end(), good_.begin() + place.offset + place.size, good_.end());
    return bytes;
  }
  Bytes bytes_of(std::size_t chunk) const {
    const ChunkPlace& place = places_[chunk];
    return {good_.begin() + place.offset, good_.begin() + place.offset + place.size};
  }

  Bytes good_;
  std::vector<ChunkPlace> places_;
  std::string text_;
  std::uint64_t rows_ = 0;
};

TEST_F(Damage, a_file_cut_at_any_byte_gives_all_whole_chunks_before_the_cut) {
  for (std::size_t size = 0; size < good_.size(); ++size) {
    const Bytes bytes(good_.begin(), good_.begin() + size);
    const ReadResult result = read_bytes(bytes);

    if (size < trace::kFileHeaderBytes) {
      ASSERT_EQ(result.status.code(), StatusCode::kUnreadable) << size;
      continue;
    }
    std::uint64_t chunks = 0, rows = 0, end = trace::kFileHeaderBytes, claimed = 0;
    for (const ChunkPlace& place : places_) {
      if (place.offset + place.size <= size) {
        ++chunks;
        end = place.offset + place.size;
        if (place.header.type != trace::kEndType) rows += place.header.rows;
      } else if (place.offset + trace::kChunkHeaderBytes <= size) {
        claimed += place.header.rows;
      }
    }
    ASSERT_EQ(result.health.chunks, chunks) << size;
    ASSERT_EQ(result.health.rows, rows) << size;
    ASSERT_EQ(result.health.bytes_skipped, size - end) << size;
    ASSERT_EQ(result.health.rows_lost, claimed) << size;
    ASSERT_FALSE(result.health.clean_end) << size;
    ASSERT_EQ(result.status.code(), size == end ? StatusCode::kOk : StatusCode::kDamaged) << size;
    expect_account(result, bytes);
  }
}

TEST_F(Damage, a_bit_flipped_in_any_byte_never_delivers_anything_wrong_and_costs_one_chunk) {
  for (std::size_t at = 0; at < good_.size(); ++at) {
    Bytes bytes = good_;
    bytes[at] ^= static_cast<std::byte>(1u << (at % 8));

    const ReadResult result = read_bytes(bytes);

    ASSERT_EQ(result.status.code(), StatusCode::kDamaged) << "byte " << at;
    expect_account(result, bytes);
    const std::size_t lines = expect_subsequence(result);
    ASSERT_FALSE(HasFailure()) << "byte " << at;
    if (at < trace::kFileHeaderBytes) {
      ASSERT_EQ(result.health.rows, rows_) << "byte " << at;
      ASSERT_EQ(result.health.bytes_skipped, trace::kFileHeaderBytes);
      continue;
    }
    for (const ChunkPlace& place : places_) {
      if (at < place.offset || at >= place.offset + place.size) continue;
      const bool in_header = at < place.offset + trace::kChunkHeaderBytes;
      const bool end = place.header.type == trace::kEndType;
      const std::uint64_t lost = end ? 0 : place.header.rows;
      ASSERT_EQ(lines, rows_ - lost) << "byte " << at;
      ASSERT_EQ(result.health.rows, rows_ - lost) << "byte " << at;
      ASSERT_EQ(result.health.bytes_skipped, place.size) << "byte " << at;
      ASSERT_EQ(result.health.rows_lost, in_header ? 0 : place.header.rows) << "byte " << at;
      // The last chunk's number is known only from its header.
      ASSERT_EQ(result.health.chunks_lost, end && in_header ? 0u : 1u) << "byte " << at;
    }
  }
}

TEST_F(Damage, a_chunk_that_is_missing_is_seen_by_its_number) {
  for (std::size_t i = 0; i + 1 < places_.size(); ++i) {
    const ReadResult result = read_bytes(without(i));
    ASSERT_EQ(result.status.code(), StatusCode::kDamaged);
    ASSERT_EQ(result.health.chunks_lost, 1u) << i;
    ASSERT_EQ(result.health.bytes_skipped, 0u) << i;
    ASSERT_EQ(result.health.rows, rows_ - places_[i].header.rows) << i;
    ASSERT_TRUE(result.health.clean_end);
    expect_subsequence(result);
  }
}

TEST_F(Damage, a_chunk_that_comes_twice_is_delivered_once) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    Bytes bytes(good_.begin(), good_.begin() + places_[i].offset);
    bytes = bytes + bytes_of(i);
    bytes.insert(bytes.end(), good_.begin() + places_[i].offset, good_.end());

    const ReadResult result = read_bytes(bytes);

    ASSERT_EQ(batch_text(result.all), text_) << i;
    ASSERT_EQ(result.health.chunks_lost, 0u) << i;
    ASSERT_EQ(result.health.bytes_skipped, places_[i].size) << i;
    ASSERT_THAT(result.health.problems, Contains(HasSubstr("a copy")));
  }
}

TEST_F(Damage, chunks_in_the_wrong_order_are_not_delivered_late) {
  for (std::size_t i = 0; i + 2 < places_.size(); ++i) {
    Bytes bytes(good_.begin(), good_.begin() + places_[i].offset);
    bytes = bytes + bytes_of(i + 1) + bytes_of(i);
    bytes.insert(bytes.end(), good_.begin() + places_[i + 2].offset, good_.end());

    const ReadResult result = read_bytes(bytes);

    ASSERT_EQ(result.health.chunks_lost, 1u) << i;
    ASSERT_EQ(result.health.rows_lost, places_[i].header.rows) << i;
    ASSERT_EQ(result.health.bytes_skipped, places_[i].size) << i;
    ASSERT_THAT(result.health.problems, Contains(HasSubstr("out of order")));
    expect_subsequence(result);
  }
}

TEST_F(Damage, zeros_over_two_chunks_cost_those_two) {
  for (std::size_t i = 0; i + 2 < places_.size(); ++i) {
    Bytes bytes = good_;
    std::fill_n(bytes.begin() + places_[i].offset, places_[i].size + places_[i + 1].size, std::byte{0});
    const ReadResult result = read_bytes(bytes);
    ASSERT_EQ(result.health.chunks_lost, 2u) << i;
    ASSERT_EQ(result.health.bytes_skipped, places_[i].size + places_[i + 1].size) << i;
    ASSERT_EQ(result.health.rows, rows_ - places_[i].header.rows - places_[i + 1].header.rows) << i;
  }
}

TEST_F(Damage, bytes_missing_from_the_middle_of_a_payload_cost_one_chunk) {
  const std::size_t i = 5;
  ASSERT_GT(places_[i].size, trace::kChunkHeaderBytes + 10);
  Bytes bytes = good_;
  const auto cut = bytes.begin() + places_[i].offset + trace::kChunkHeaderBytes + 4;
  bytes.erase(cut, cut + 5);
  const ReadResult result = read_bytes(bytes);
  EXPECT_EQ(result.health.chunks_lost, 1u);
  EXPECT_EQ(result.health.rows_lost, places_[i].header.rows);
  EXPECT_EQ(result.health.bytes_skipped, places_[i].size - 5);
}

TEST_F(Damage, bytes_after_the_end_are_skipped_and_counted) {
  const ReadResult result = read_bytes(good_ + Bytes(123, std::byte{0x4e}));
  EXPECT_EQ(result.status.code(), StatusCode::kDamaged);
  EXPECT_EQ(result.health.bytes_skipped, 123u);
  EXPECT_EQ(batch_text(result.all), text_);
}

TEST_F(Damage, a_trace_without_its_end_is_running_or_killed_but_not_damaged) {
  const Bytes bytes(good_.begin(), good_.begin() + places_.back().offset);
  const ReadResult result = read_bytes(bytes);
  EXPECT_TRUE(result.status.is_ok());
  EXPECT_FALSE(result.health.clean_end);
  EXPECT_FALSE(result.health.damaged());
  EXPECT_EQ(batch_text(result.all), text_);
}

TEST_F(Damage, ranges_of_ops_stay_in_bounds_when_any_one_chunk_is_lost) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    for (const RecordBatch& batch : read_bytes(without(i)).batches) {
      for (const OpRecord& op : batch.ops) {
        ASSERT_LE(std::uint64_t{op.first_input} + op.input_count, batch.inputs.size());
        ASSERT_LE(std::uint64_t{op.first_output} + op.output_count, batch.outputs.size());
        ASSERT_LE(std::uint64_t{op.first_scalar} + op.scalar_count, batch.scalars.size());
      }
    }
  }
}

TEST_F(Damage, a_message_names_what_is_damaged_how_much_and_what_to_do) {
  Bytes bytes = good_;
  bytes[places_[4].offset + trace::kChunkHeaderBytes] ^= std::byte{1};
  const ReadResult result = read_bytes(bytes);
  EXPECT_THAT(result.status.message(), HasSubstr("segment.nht"));
  EXPECT_THAT(result.status.message(), HasSubstr("chunks lost 1 "));
  EXPECT_THAT(result.status.message(), HasSubstr("nanhunt doctor"));
  EXPECT_THAT(result.health.problems, Contains(HasSubstr("fails its checksum")));
}

}  // namespace
}  // namespace nanhunt::trace_testing
