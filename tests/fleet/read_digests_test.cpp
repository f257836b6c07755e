// SPDX-License-Identifier: Apache-2.0
// Digests of a run folder: made where they are missing, and bad input costs the rank that it is of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/fleet/make_digest.h"
#include "src/fleet/read_digests.h"
#include "src/trace/segments/segment.h"
#include "tests/fleet/rank_program.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::fleet {
namespace {

namespace fs = std::filesystem;
using fleet_tests::RankIdentity;
using fleet_tests::RankPlan;
using fleet_tests::train_rank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RankIdentity rank_of(std::uint32_t rank, std::uint32_t world) { return {rank, world, {{"data", rank}}, "n0", {}}; }

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class ReadDigests : public ::testing::Test {
 protected:
  void record(std::uint32_t world) {
    for (std::uint32_t rank = 0; rank < world; ++rank) train_rank(dir_.path(), rank_of(rank, world), {});
  }
  fs::path digest(std::uint32_t rank, std::uint32_t attempt = 0) const {
    return fs::path(dir_.path()) / trace::rank_folder_name(rank) / trace::attempt_folder_name(attempt) / kDigestName;
  }
  Digests read(bool make = true) const {
    ReadOptions options;
    options.make = make;
    auto digests = read_digests(dir_.path(), options);
    EXPECT_TRUE(digests.is_ok()) << digests.status().message();
    return digests ? std::move(*digests) : Digests{};
  }
  testing_support::TempDir dir_;
};

TEST_F(ReadDigests, makes_those_that_are_missing_and_leaves_them_beside_the_traces) {
  record(3);
  const Digests first = read();
  EXPECT_THAT(first.ranks, SizeIs(3));
  EXPECT_EQ(first.made, 3u);
  EXPECT_EQ(first.world_size, 3u);
  EXPECT_TRUE(fs::exists(digest(2)));
  EXPECT_EQ(read().made, 0u);
  EXPECT_EQ(read(false).ranks.size(), 3u);
}

TEST_F(ReadDigests, says_of_each_rank_what_its_trace_says) {
  train_rank(dir_.path(), rank_of(0, 2), {.overflows = 2, .group = {0, 1}});
  train_rank(dir_.path(), rank_of(1, 2), {.arrives = 2, .group = {0, 1}});
  const Digests d = read();
  ASSERT_THAT(d.ranks, SizeIs(2));
  ASSERT_THAT(d.ranks[0].origins, SizeIs(1));
  EXPECT_EQ(d.ranks[0].origins[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(d.ranks[0].origins[0].place.step, 2u);
  EXPECT_FALSE(d.ranks[0].arrival);
  EXPECT_THAT(d.ranks[1].origins, IsEmpty());
  ASSERT_TRUE(d.ranks[1].arrival);
  EXPECT_EQ(d.ranks[1].arrival->call, 2u);
  EXPECT_EQ(d.ranks[1].arrival->through, "allreduce");
  EXPECT_EQ(d.ranks[1].clean_through, 1u);
  EXPECT_EQ(d.ranks[1].coordinates.at("data"), 1);
  EXPECT_EQ(d.ranks[1].last_call->call, 5u);
  EXPECT_THAT(d.ranks[1].checksums, SizeIs(6));
}

TEST_F(ReadDigests, makes_a_digest_anew_whose_trace_has_grown) {
  record(2);
  read();
  std::string text = text_of(digest(1));
  const std::string bytes = std::to_string(segment_bytes(digest(1).parent_path().string()));
  text.replace(text.find(bytes), bytes.size(), "1");
  write(digest(1), text);
  EXPECT_EQ(read(/*make=*/false).stale, 1u);
  EXPECT_EQ(read().made, 1u);
  EXPECT_EQ(read(false).stale, 0u);
}

TEST_F(ReadDigests, reads_a_folder_into_which_digests_alone_were_copied) {
  record(2);
  read();
  for (const std::uint32_t rank : {0u, 1u}) fs::remove(digest(rank).parent_path() / "000000.nht");
  const Digests d = read();
  EXPECT_THAT(d.ranks, SizeIs(2));
  EXPECT_EQ(d.made, 0u);
}

TEST_F(ReadDigests, that_are_damaged_without_a_trace_cost_their_rank_alone) {
  record(4);
  read();
  for (std::uint32_t rank = 0; rank < 4; ++rank) fs::remove(digest(rank).parent_path() / "000000.nht");
  write(digest(0), text_of(digest(0)).substr(0, 100));  // half written
  write(digest(1), text_of(digest(2)));                 // of another rank
  fs::remove(digest(3));
  fs::create_symlink("/etc/passwd", digest(3));
  const Digests d = read();
  ASSERT_THAT(d.ranks, SizeIs(1));
  EXPECT_EQ(d.ranks[0].rank, 2u);
  ASSERT_THAT(d.unread, SizeIs(3));
  EXPECT_THAT(d.unread[0].why, HasSubstr("not whole"));
  EXPECT_THAT(d.unread[1].why, HasSubstr("rank 2"));
  EXPECT_EQ(d.missing_count(), 3u);
  EXPECT_THAT(d.missing(2), ElementsAre(0, 1));
}

TEST_F(ReadDigests, passes_over_names_that_are_no_rank_of_the_run) {
  record(2);
  for (const char* name : {"rank-", "rank--1", "rank-1x", "rank-99999999999", "rank-..", "other", "rank-7"})
    fs::create_directories(fs::path(dir_.path()) / name / "attempt-..");
  EXPECT_THAT(read().ranks, SizeIs(2));
}

TEST_F(ReadDigests, of_a_folder_that_holds_nothing_or_is_not_there_say_what_to_give) {
  EXPECT_THAT(read_digests(dir_.path(), {}).status().message(), HasSubstr("Give a run folder"));
  EXPECT_EQ(read_digests(dir_.path() + "/none", {}).status().code(), StatusCode::kNotFound);
  fs::create_directories(fs::path(dir_.path()) / "rank-00000" / "attempt-0");
  EXPECT_EQ(read_digests(dir_.path(), {}).status().code(), StatusCode::kNotFound);
}

TEST_F(ReadDigests, of_a_damaged_trace_are_made_of_what_is_left) {
  record(2);
  const fs::path segment = digest(1).parent_path() / "000000.nht";
  std::string bytes = text_of(segment);
  for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 40; ++i) bytes[i] = 0;
  write(segment, bytes);
  const Digests d = read();
  ASSERT_THAT(d.ranks, SizeIs(2));
  EXPECT_GT(d.ranks[1].chunks_lost, 0u);
  write(segment, "not a trace");
  fs::remove(digest(1));
  EXPECT_THAT(read().unread, SizeIs(1));
}

TEST_F(ReadDigests, are_the_same_bytes_for_the_same_trace) {
  record(1);
  read();
  const std::string first = text_of(digest(0));
  fs::remove(digest(0));
  read();
  EXPECT_EQ(text_of(digest(0)), first);
}

}  // namespace
}  // namespace nanhunt::fleet
