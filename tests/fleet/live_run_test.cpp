// SPDX-License-Identifier: Apache-2.0
// A run folder looked at while ranks write into it: what it shows then, and that it stays as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "nanhunt/recorder.h"
#include "src/fleet/live_run.h"
#include "src/fleet/make_digest.h"
#include "src/trace/segments/segment.h"
#include "tests/fleet/rank_program.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::fleet {
namespace {

namespace fs = std::filesystem;
using fleet_tests::RankIdentity;
using fleet_tests::RankPlan;
using fleet_tests::train_rank;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = bytes_of(entry.path());
  }
  return files;
}

// A training of one rank, step by step.
class Training {
 public:
  explicit Training(const std::string& run, std::uint32_t rank = 0, std::uint32_t world = 1) {
    RecorderOptions options;
    options.run_dir = run;
    RunInfo info;
    info.rank = rank;
    info.world_size = world;
    info.framework = "simulated";
    info.level = "steps";
    auto opened = Recorder::open(options, info);
    EXPECT_TRUE(opened.is_ok()) << opened.status().message();
    if (opened) recorder_ = std::move(*opened);
  }

  // `took`: when it ended after the one before, and what of that watching took, in nanoseconds.
  void timed_step(std::int64_t took, std::int64_t watching) {
    at_ns_ += took;
    StepEvent event;
    event.step = step_++;
    event.loss = 1;
    event.at_ns = at_ns_;
    event.watch_ns = watching;
    recorder_->on_step_end(event);
    EXPECT_TRUE(recorder_->flush());
  }
  void step(double loss, bool skipped = false, double scale = 1) {
    HealthEvent health;
    health.step = step_;
    health.gradient_norm = 0.5;
    health.weight_norm = kNan;
    health.bad = !std::isfinite(loss) ? 1u : skipped ? 2u : 0u;
    recorder_->on_health(health);
    StepEvent event;
    event.step = step_++;
    event.loss = loss;
    event.lr = 0.1;
    event.skipped = skipped;
    event.scale = scale;
    recorder_->on_step_end(event);
    EXPECT_TRUE(recorder_->flush());
  }
  void close() { EXPECT_TRUE(recorder_->close()); }
  std::string folder() const { return recorder_->attempt_dir(); }

 private:
  std::unique_ptr<Recorder> recorder_;
  std::uint32_t step_ = 0;
  std::int64_t at_ns_ = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
};

class LiveRunTest : public ::testing::Test {
 protected:
  LiveStatus look(int after = 0) { return live_.refresh(began_ + seconds(after)); }
  void train_fleet(std::uint32_t world, const RankPlan& plan = {}) {
    for (std::uint32_t rank = 0; rank < world; ++rank)
      train_rank(run_, {rank, world, {{"pipeline", rank / 10}}, "n" + std::string(1, static_cast<char>('0' + rank % 10)), {}}, plan);
  }
  std::string attempt(std::uint32_t rank) const { return run_ + "/" + trace::rank_folder_name(rank) + "/attempt-0"; }

  testing_support::TempDir dir_;
  const std::string run_ = dir_.path("run");
  const LiveRun::Clock::time_point began_ = LiveRun::Clock::now();
  LiveRun live_{run_, 60};
};

TEST_F(LiveRunTest, a_run_that_is_not_there_has_not_begun) {
  EXPECT_EQ(look().state, LiveState::kNotBegun);
  fs::create_directory(run_);
  EXPECT_EQ(look().state, LiveState::kNotBegun);
}

TEST_F(LiveRunTest, shows_the_steps_that_came_since_and_those_before) {
  Training training(run_);
  training.step(3);
  LiveStatus status = look();
  EXPECT_EQ(status.state, LiveState::kTraining);
  EXPECT_EQ(status.numbers.highest_step, 0u);
  EXPECT_EQ(status.loss, 3.0);
  EXPECT_EQ(status.status, VerdictStatus::kClean);
  EXPECT_EQ(status.headline, "No harmful NaN or Inf through step 0 so far");
  training.step(2, /*skipped=*/true, 65536);
  training.step(1, false, 32768);
  status = look();
  EXPECT_EQ(status.numbers.highest_step, 2u);
  EXPECT_EQ(status.loss, 1.0);
  EXPECT_EQ(status.numbers.scale, 32768.0);
  EXPECT_EQ(status.gradient_norm, 0.5);
  EXPECT_EQ(status.numbers.skipped_steps, 1u);
  EXPECT_EQ(status.numbers.bad_steps, 0u) << "the loss scaler skipped it";
  for (int i = 0; i < 300; ++i) training.step(i == 7 ? kNan : 1);
  status = look();
  EXPECT_EQ(status.numbers.highest_step, 302u);
  EXPECT_EQ(status.numbers.bad_steps, 1u);
  EXPECT_EQ(status.numbers.skipped_steps, 1u);
  EXPECT_EQ(status.status, VerdictStatus::kFault);
  EXPECT_THAT(status.faults, SizeIs(1));
}

TEST_F(LiveRunTest, says_which_share_of_the_last_steps_watching_took_where_that_is_known) {
  Training training(run_);
  constexpr std::int64_t kMillisecond = 1'000'000;
  training.timed_step(10 * kMillisecond, 0);
  training.timed_step(10 * kMillisecond, 0);
  EXPECT_FALSE(look().watching.has_value()) << "nobody measured it";
  for (int i = 0; i < 200; ++i) training.timed_step(10 * kMillisecond, 2 * kMillisecond);
  LiveStatus status = look();
  ASSERT_TRUE(status.watching.has_value());
  EXPECT_NEAR(*status.watching, 0.2, 1e-9);
  EXPECT_NEAR(*status.seconds_per_step, 0.01, 1e-9);
  for (int i = 0; i < 200; ++i) training.timed_step(10 * kMillisecond, 40 * kMillisecond);
  EXPECT_EQ(*look().watching, 1.0) << "a clock that disagrees gives no more than all of it";
}

TEST_F(LiveRunTest, of_a_run_that_is_closed_says_that_it_ended) {
  Training training(run_);
  training.step(3);
  look();
  training.close();
  const LiveStatus status = look();
  EXPECT_EQ(status.state, LiveState::kEnded);
  EXPECT_EQ(status.headline, "No harmful NaN or Inf through step 0");
  EXPECT_EQ(status.numbers.ended, 1u);
}

TEST_F(LiveRunTest, calls_a_rank_quiet_until_something_new_comes) {
  Training training(run_);
  training.step(3);
  EXPECT_EQ(look(0).state, LiveState::kTraining);
  EXPECT_EQ(look(59).state, LiveState::kTraining);
  const LiveStatus quiet = look(90);
  EXPECT_EQ(quiet.state, LiveState::kQuiet);
  EXPECT_GE(quiet.quiet_seconds, 60);
  training.step(2);
  EXPECT_EQ(look(91).state, LiveState::kTraining);
  LiveRun later(run_, 60);
  EXPECT_EQ(later.refresh(began_ + seconds(3600)).state, LiveState::kQuiet) << "at first sight the files say when";
}

TEST_F(LiveRunTest, names_the_fault_of_a_lone_rank_and_leaves_the_folder_as_it_was) {
  RankPlan plan;
  plan.overflows = 2;
  train_rank(run_, {0, 1, {}, "n0", {}}, plan);
  const auto before = files_in(run_);
  const LiveStatus status = look();
  EXPECT_EQ(files_in(run_), before);
  ASSERT_THAT(status.faults, SizeIs(1));
  EXPECT_EQ(status.faults[0].cls, "overflow");
  EXPECT_EQ(status.faults[0].op, "mul");
  EXPECT_EQ(status.faults[0].step, 2u);
  EXPECT_EQ(status.numbers.clean_through, 1u);
  EXPECT_THAT(status.headline, HasSubstr("(train.py:10), step 2"));
  EXPECT_EQ(status.status, VerdictStatus::kFault);
}

TEST_F(LiveRunTest, of_a_healthy_run_finds_nothing_at_any_look) {
  RankPlan plan;
  plan.calibrates = 1;
  train_rank(run_, {0, 1, {}, "n0", {}}, plan);
  for (int i = 0; i < 3; ++i) {
    const LiveStatus status = look(i);
    EXPECT_THAT(status.faults, IsEmpty());
    EXPECT_NE(status.status, VerdictStatus::kFault);
    EXPECT_EQ(status.numbers.bad_steps, 0u);
    EXPECT_EQ(status.numbers.skipped_steps, 1u);
    EXPECT_EQ(status.numbers.clean_through, 5u);
  }
}

TEST_F(LiveRunTest, waits_for_the_rest_of_a_chunk_that_is_being_written) {
  Training training(dir_.path("source"));
  for (int i = 0; i < 20; ++i) training.step(1);
  const std::string whole = bytes_of(training.folder() + "/000000.nht");
  fs::copy(dir_.path("source"), run_, fs::copy_options::recursive);
  std::uint32_t last = 0;
  for (std::size_t part = 1; part <= 50; ++part) {  // cut anywhere
    write(attempt(0) + "/000000.nht", whole.substr(0, whole.size() * part / 50));
    const LiveStatus status = look();
    EXPECT_EQ(status.damaged, 0u) << part;
    EXPECT_GE(status.numbers.highest_step.value_or(0), last);
    last = status.numbers.highest_step.value_or(0);
  }
  EXPECT_EQ(last, 19u);
}

TEST_F(LiveRunTest, passes_over_damage_and_says_so) {
  Training training(run_);
  for (int i = 0; i < 20; ++i) training.step(1);
  training.close();
  const std::string path = training.folder() + "/000000.nht";
  std::string bytes = bytes_of(path);
  for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 64; ++i) bytes[i] = 'x';
  write(path, bytes);
  const LiveStatus status = look();
  EXPECT_EQ(status.state, LiveState::kEnded);
  EXPECT_EQ(status.numbers.highest_step, 19u);
  EXPECT_EQ(status.damaged, 1u);
}

TEST_F(LiveRunTest, any_byte_that_is_wrong_crashes_nothing) {
  Training training(dir_.path("source"));
  for (int i = 0; i < 5; ++i) training.step(1);
  training.close();
  const std::string whole = bytes_of(training.folder() + "/000000.nht");
  fs::copy(dir_.path("source"), run_, fs::copy_options::recursive);
  for (std::size_t i = 0; i < whole.size(); i += 7) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x55);
    write(attempt(0) + "/000000.nht", bytes);
    LiveRun live(run_, 60);
    EXPECT_LE(live.refresh(began_).numbers.highest_step.value_or(0), 4u);
  }
}

TEST_F(LiveRunTest, a_restart_shows_the_new_attempt) {
  {
    Training first(run_);
    first.step(kNan);
    first.close();
  }
  EXPECT_EQ(look().status, VerdictStatus::kFault);
  Training second(run_);
  second.step(1);
  const LiveStatus status = look();
  EXPECT_EQ(status.state, LiveState::kTraining);
  EXPECT_EQ(status.loss, 1.0);
  EXPECT_EQ(status.numbers.bad_steps, 0u);
  EXPECT_THAT(status.faults, IsEmpty());
}

TEST_F(LiveRunTest, of_many_ranks_reads_digests_and_says_which_groups_they_are_of) {
  train_fleet(20);
  RankPlan plan;
  plan.overflows = 3;
  fs::remove_all(run_ + "/rank-00018");
  train_rank(run_, {18, 20, {{"pipeline", 1}}, "n8", {}}, plan);
  for (std::uint32_t rank = 0; rank < 20; ++rank) {
    const auto digest = make_digest(attempt(rank));
    ASSERT_TRUE(digest.is_ok());
    ASSERT_TRUE(write_digest(attempt(rank), *digest));
  }
  const auto before = files_in(run_);
  const LiveStatus status = look();
  EXPECT_EQ(files_in(run_), before);
  EXPECT_EQ(status.world_size, 20u);
  EXPECT_EQ(status.numbers.ended, 20u);
  EXPECT_EQ(status.state, LiveState::kEnded);
  EXPECT_THAT(status.headline, HasSubstr("Rank 18 alone: overflow at mul"));
  EXPECT_EQ(status.numbers.clean_through, 2u);
  ASSERT_THAT(status.faults, SizeIs(1));
  EXPECT_EQ(status.faults[0].rank, 18u);
  ASSERT_THAT(status.groups, SizeIs(2));
  EXPECT_EQ(status.groups[0].place, (Place{"pipeline", "0"}));
  EXPECT_EQ(status.groups[0].numbers.bad_steps, 0u);
  EXPECT_EQ(status.groups[1].numbers.bad_steps, 1u);
  EXPECT_EQ(status.groups[1].numbers.ranks, 10u);
}

TEST_F(LiveRunTest, finds_the_end_of_ranks_that_left_no_digest) {
  train_fleet(20);
  const LiveStatus status = look(120);
  EXPECT_EQ(status.state, LiveState::kEnded);
  EXPECT_EQ(status.numbers.ended, 20u);
  EXPECT_EQ(status.status, VerdictStatus::kInconclusive) << "what those did is not known";
}

TEST_F(LiveRunTest, a_damaged_digest_is_counted_and_the_other_ranks_are_shown) {
  train_fleet(3);
  write(attempt(1) + "/" + kDigestName, "{\"schema\":");
  const LiveStatus status = look();
  EXPECT_EQ(status.damaged, 1u);
  EXPECT_EQ(status.numbers.ranks, 3u);
}

TEST_F(LiveRunTest, one_rank_that_stands_still_does_not_make_the_run_quiet) {
  Training one(run_, 0, 2), other(run_, 1, 2);
  one.step(1);
  other.step(1);
  look();
  for (int i = 0; i < 9; ++i) one.step(1);
  const LiveStatus status = look(100);
  EXPECT_EQ(status.state, LiveState::kTraining);
  EXPECT_EQ(status.numbers.training, 1u);
  EXPECT_EQ(status.numbers.quiet, 1u);
  EXPECT_EQ(status.numbers.lowest_step, 0u);
  EXPECT_EQ(status.numbers.highest_step, 9u);
  EXPECT_EQ(status.numbers.clean_through, 0u);
}

TEST(LiveGroups, those_that_do_not_fit_are_one_group) {
  std::vector<LiveRank> ranks(300);
  for (std::uint32_t i = 0; i < 300; ++i) {
    ranks[i].rank = i;
    ranks[i].places = {{"data", std::to_string(i)}, {"pipeline", std::to_string(i % 4)}};
    ranks[i].numbers.ranks = 1;
    ranks[i].numbers.bad_steps = i == 299 ? 5 : 0;
  }
  const std::vector<LiveGroup> groups = group_ranks(ranks);
  ASSERT_THAT(groups, SizeIs(kMaxGroups + 1));
  EXPECT_EQ(groups[0].place, (Place{"pipeline", "0"}));
  EXPECT_EQ(groups[3].numbers.ranks, 75u);
  EXPECT_EQ(groups.back().place, (Place{"", "other"}));
  EXPECT_EQ(groups.back().numbers.ranks, 300u - (kMaxGroups - 4));
  EXPECT_THAT(group_ranks({ranks[0]}), IsEmpty()) << "a lone rank is the whole run";
}

}  // namespace
}  // namespace nanhunt::fleet
