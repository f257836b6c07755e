// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/trace/random_batch.h"
#include "tests/trace/trace_fixture.h"

namespace nanhunt::trace_testing {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class FindAttempts : public TraceTest {
 protected:
  std::string write_rank(const std::string& run, std::uint32_t rank) {
    RunInfo info = TraceTest::info();
    info.rank = rank;
    auto writer = TraceWriter::create(path(run), info);
    EXPECT_TRUE(writer.is_ok()) << writer.status().message();
    EXPECT_TRUE((*writer)->write(RandomBatches(rank).next(5)).is_ok());
    EXPECT_TRUE((*writer)->close().is_ok());
    return (*writer)->attempt_dir();
  }
};

TEST_F(FindAttempts, writers_never_share_a_folder_and_attempts_come_by_rank_then_number) {
  write_rank("run", 12);
  for (int i = 0; i < 11; ++i) write_rank("run", 3);

  const auto found = find_attempts(path("run"));

  ASSERT_TRUE(found.is_ok()) << found.status().message();
  ASSERT_EQ(found->size(), 12u);
  for (std::uint32_t i = 0; i < 11; ++i) {
    EXPECT_EQ((*found)[i].dir, path("run") + "/rank-00003/attempt-" + std::to_string(i));
    EXPECT_EQ((*found)[i].info.rank, 3u);
    EXPECT_EQ((*found)[i].info.attempt, i);
    EXPECT_TRUE((*found)[i].has_info);
  }
  EXPECT_EQ((*found)[11].dir, path("run") + "/rank-00012/attempt-0");
}

TEST_F(FindAttempts, a_run_a_rank_an_attempt_and_one_segment_are_all_accepted) {
  const std::string dir = write_rank("run", 3);
  for (const std::string& start : {path("run"), path("run") + "/", path("run") + "/rank-00003", dir, dir + "/"}) {
    const auto found = find_attempts(start);
    ASSERT_TRUE(found.is_ok()) << start << ": " << found.status().message();
    ASSERT_EQ(found->size(), 1u) << start;
    EXPECT_EQ((*found)[0].dir, dir);
    EXPECT_EQ((*found)[0].info.scenario, "adam-eps");
  }
  const auto segment = find_attempts(dir + "/000000.nht");
  ASSERT_TRUE(segment.is_ok());
  ASSERT_EQ(segment->size(), 1u);
  EXPECT_TRUE((*segment)[0].has_info);
  TraceHealth health;
  EXPECT_TRUE(read_attempt((*segment)[0], [](const RecordBatch&) {}, health).is_ok());
  EXPECT_GT(health.rows, 0u);
}

TEST_F(FindAttempts, without_run_json_rank_and_attempt_come_from_the_folders_names) {
  write_rank("run", 3);
  const std::string dir = write_rank("run", 3);
  fs::remove(dir + "/run.json");
  for (const std::string& start : {path("run"), dir, dir + "/000000.nht"}) {
    const auto found = find_attempts(start);
    ASSERT_TRUE(found.is_ok());
    EXPECT_FALSE(found->back().has_info);
    EXPECT_EQ(found->back().info.rank, 3u);
    EXPECT_EQ(found->back().info.attempt, 1u);
  }
}

TEST_F(FindAttempts, names_of_folders_win_over_the_rank_and_attempt_in_run_json) {
  const std::string first = write_rank("run", 0), other = write_rank("run", 1), again = write_rank("run", 1);
  for (const std::string& dir : {other, again}) {
    fs::copy_file(first + "/run.json", dir + "/run.json", fs::copy_options::overwrite_existing);
  }
  const auto found = find_attempts(path("run"));
  ASSERT_TRUE(found.is_ok());
  ASSERT_EQ(found->size(), 3u);
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_TRUE((*found)[i].has_info);
    EXPECT_EQ((*found)[i].info.rank, 1u);
    EXPECT_EQ((*found)[i].info.attempt, i - 1);
  }
  for (const std::string& start : {again, again + "/000000.nht"}) {
    const auto alone = find_attempts(start);
    ASSERT_TRUE(alone.is_ok());
    EXPECT_EQ((*alone)[0].info.rank, 1u) << start;
    EXPECT_EQ((*alone)[0].info.attempt, 1u) << start;
  }
}

TEST_F(FindAttempts, where_folders_have_names_of_their_own_run_json_says_rank_and_attempt) {
  write_rank("run", 3);
  const std::string second = write_rank("run", 3);
  fs::rename(second, path("mine"));
  auto found = find_attempts(path("mine"));
  ASSERT_TRUE(found.is_ok());
  EXPECT_EQ((*found)[0].info.rank, 3u);
  EXPECT_EQ((*found)[0].info.attempt, 1u);
  fs::rename(path("run") + "/rank-00003", path("kept"));
  found = find_attempts(path("kept"));
  ASSERT_TRUE(found.is_ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].info.rank, 3u);
}

TEST_F(FindAttempts, what_is_missing_empty_or_no_run_is_told_apart) {
  auto found = find_attempts(path("nowhere"));
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(found.status().message(), HasSubstr("does not exist"));
  EXPECT_EQ(find_attempts("").status().code(), StatusCode::kNotFound);

  fs::create_directory(path("empty"));
  found = find_attempts(path("empty"));
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(found.status().message(), HasSubstr("rank-00000/attempt-0/000000.nht"));
  EXPECT_THAT(found.status().message(), HasSubstr("`nanhunt autopsy " + path("empty") + "`"));

  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(find_attempts(path("pipe")).status().code(), StatusCode::kUnreadable);
}

TEST_F(FindAttempts, an_attempt_of_which_only_run_json_exists_holds_nothing) {
  const std::string dir = write_rank("run", 0);
  fs::remove(dir + "/000000.nht");
  const auto found = find_attempts(path("run"));
  ASSERT_TRUE(found.is_ok());
  ASSERT_EQ(found->size(), 1u);
  const ReadResult result = read(dir);
  EXPECT_EQ(result.status.code(), StatusCode::kNotFound);
  EXPECT_THAT(result.status.message(), HasSubstr("nothing was recorded"));
}

TEST_F(FindAttempts, links_and_names_in_another_spelling_are_left_out) {
  const std::string dir = write_rank("run", 0);
  write_rank("outside", 1);
  fs::create_directory_symlink(path("outside") + "/rank-00001", path("run") + "/rank-00001");
  fs::create_directory_symlink(path("outside") + "/rank-00001/attempt-0", path("run") + "/rank-00000/attempt-1");
  for (const char* name : {"rank-1", "rank-0000000", "rank-99999999999", "rank-", "rank-0000x", "RANK-00002"}) {
    fs::create_directory(path("run") + "/" + name);
  }
  fs::create_directory(path("run") + "/rank-00000/attempt-01");
  save(dir + "/7.nht", load(dir + "/000000.nht"));

  const auto found = find_attempts(path("run"));

  ASSERT_TRUE(found.is_ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].dir, dir);
  EXPECT_EQ(read(dir).health.segments, 1u);
}

TEST_F(FindAttempts, run_json_is_not_read_through_a_link) {
  const std::string dir = write_rank("run", 0);
  fs::rename(dir + "/run.json", path("elsewhere.json"));
  fs::create_symlink(path("elsewhere.json"), dir + "/run.json");
  const auto found = find_attempts(path("run"));
  ASSERT_TRUE(found.is_ok());
  EXPECT_FALSE((*found)[0].has_info);
}

TEST_F(FindAttempts, a_run_named_through_a_link_is_found) {
  write_rank("run", 0);
  fs::create_directory_symlink(path("run"), path("link"));
  const auto found = find_attempts(path("link"));
  ASSERT_TRUE(found.is_ok());
  EXPECT_TRUE(read((*found)[0].dir).status.is_ok());
}

}  // namespace
}  // namespace nanhunt::trace_testing
