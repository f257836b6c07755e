// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/trace/batch_text.h"
#include "tests/trace/damage/forge.h"
#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::Pair;

class Salvage : public TraceTest {
 protected:
  void SetUp() override {
    TraceTest::SetUp();
    RandomBatches random(41);
    dir_ = write_trace("run", {random.next(30), random.next(30)});
    whole_ = read(dir_).all;
  }
  AttemptTrace attempt() {
    auto found = find_attempts(dir_);
    EXPECT_TRUE(found.is_ok());
    return found->at(0);
  }
  std::string dir_;
  RecordBatch whole_;
};

TEST_F(Salvage, a_damaged_trace_becomes_one_with_a_clean_end_that_says_what_it_lacks) {
  const std::string file = dir_ + "/000000.nht";
  Bytes bytes = load(file);
  const auto places = chunks_of(bytes);
  const ChunkPlace& hit = places[places.size() / 2];
  bytes[hit.offset + trace::kChunkHeaderBytes] ^= std::byte{1};
  bytes.resize(bytes.size() - 3);
  save(file, bytes);
  const ReadResult damaged = read(dir_);

  TraceHealth health;
  const Status status = salvage_attempt(attempt(), path("saved"), health);

  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(health.chunks_lost, damaged.health.chunks_lost);
  EXPECT_EQ(health.rows_lost, damaged.health.rows_lost);
  EXPECT_EQ(load(file), bytes) << "the original was touched";
  const auto saved = find_attempts(path("saved"));
  ASSERT_TRUE(saved.is_ok());
  ASSERT_EQ(saved->size(), 1u);
  EXPECT_EQ((*saved)[0].info.scenario, "adam-eps");
  EXPECT_THAT((*saved)[0].info.options, Contains(Pair("salvaged", HasSubstr("rows lost"))));
  const TraceHealth lost = lost_before_salvage((*saved)[0].info);
  EXPECT_EQ(lost.chunks_lost, health.chunks_lost);
  EXPECT_EQ(lost.rows_lost, health.rows_lost);
  EXPECT_EQ(lost.bytes_skipped, health.bytes_skipped);
  EXPECT_EQ(lost.clean_end, health.clean_end);
  EXPECT_TRUE(lost.damaged());
  const ReadResult result = read((*saved)[0].dir);
  EXPECT_TRUE(result.status.is_ok()) << result.status.message();
  EXPECT_TRUE(result.health.clean_end);
  RecordBatch expected = damaged.all;
  expected.drops.push_back({.seq = damaged.all.ops.back().seq + 1, .ops = 0, .values = 0, .other = health.rows_lost});
  EXPECT_EQ(batch_text(result.all), batch_text(expected));
}

TEST_F(Salvage, rows_of_the_scaler_and_histograms_behind_the_damage_are_saved) {
  ASSERT_FALSE(whole_.scaler.empty() || whole_.histograms.empty());
  const std::string file = dir_ + "/000000.nht";
  Bytes bytes = load(file);
  // given damage in a chunk of ops, in front of those of the same frame
  for (const ChunkPlace& place : chunks_of(bytes)) {
    if (place.header.type != 4) continue;
    bytes[place.offset + trace::kChunkHeaderBytes] ^= std::byte{1};
    break;
  }
  save(file, bytes);
  // when
  TraceHealth health;
  ASSERT_TRUE(salvage_attempt(attempt(), path("saved"), health).is_ok());
  // then
  EXPECT_EQ(health.chunks_lost, 1u);
  const RecordBatch saved = read(find_attempts(path("saved"))->at(0).dir).all;
  EXPECT_EQ(saved.scaler.size(), whole_.scaler.size());
  EXPECT_EQ(saved.histograms, whole_.histograms);
  EXPECT_EQ(saved.retired, whole_.retired);
  EXPECT_LT(saved.ops.size(), whole_.ops.size());
}

TEST_F(Salvage, a_whole_trace_is_copied_row_for_row) {
  TraceHealth health;
  ASSERT_TRUE(salvage_attempt(attempt(), path("saved"), health).is_ok());
  EXPECT_EQ(batch_text(read(find_attempts(path("saved"))->at(0).dir).all), batch_text(whole_));
}

TEST_F(Salvage, the_copy_of_a_whole_trace_and_a_trace_that_is_no_copy_lacked_nothing) {
  TraceHealth health;
  ASSERT_TRUE(salvage_attempt(attempt(), path("saved"), health).is_ok());
  for (const RunInfo& info : {find_attempts(path("saved"))->at(0).info, attempt().info}) {
    EXPECT_FALSE(lost_before_salvage(info).damaged());
    EXPECT_TRUE(lost_before_salvage(info).clean_end);
  }
}

TEST_F(Salvage, the_copy_of_a_killed_run_remembers_that_it_had_no_clean_end) {
  dir_ = write_trace("killed", {RandomBatches(42).next(30)}, {}, /*close=*/false);
  TraceHealth health;
  const AttemptTrace killed = find_attempts(dir_)->at(0);
  ASSERT_TRUE(salvage_attempt(killed, path("saved"), health).is_ok());
  const TraceHealth lost = lost_before_salvage(find_attempts(path("saved"))->at(0).info);
  EXPECT_FALSE(lost.clean_end);
  EXPECT_FALSE(lost.damaged());
}

TEST_F(Salvage, losses_of_a_copy_of_a_copy_add_up_whatever_run_json_holds) {
  RunInfo info;
  info.options = {{"salvaged", "chunks lost 1, rows lost 20, bytes skipped 300"},
                  {"seed", "chunks lost 9"},
                  {"salvaged", "chunks lost 2, rows lost 99999999999999999999999, no clean end"},
                  {"salvaged", "rows lost -1, bytes skipped x"}};
  const TraceHealth lost = lost_before_salvage(info);
  EXPECT_EQ(lost.chunks_lost, 3u);
  EXPECT_EQ(lost.rows_lost, (std::uint64_t{1} << 53) - 1);
  EXPECT_EQ(lost.bytes_skipped, 300u);
  EXPECT_FALSE(lost.clean_end);
}

TEST_F(Salvage, an_existing_run_gets_another_attempt_and_nothing_is_overwritten) {
  TraceHealth health;
  const Bytes before = load(dir_ + "/000000.nht");
  ASSERT_TRUE(salvage_attempt(attempt(), path("run"), health).is_ok());
  EXPECT_EQ(load(dir_ + "/000000.nht"), before);
  EXPECT_EQ(find_attempts(path("run"))->size(), 2u);
}

TEST_F(Salvage, of_what_cannot_be_read_at_all_no_copy_is_made) {
  save(dir_ + "/000000.nht", Bytes(500, std::byte{1}));
  TraceHealth health;
  EXPECT_EQ(salvage_attempt(attempt(), path("saved"), health).code(), StatusCode::kUnreadable);
  EXPECT_FALSE(fs::exists(path("saved")));
}

TEST_F(Salvage, a_folder_that_cannot_be_made_is_a_failed_write) {
  save(path("file"), {});
  TraceHealth health;
  EXPECT_EQ(salvage_attempt(attempt(), path("file"), health).code(), StatusCode::kWriteFailed);
}

}  // namespace
}  // namespace nanhunt::trace_testing
