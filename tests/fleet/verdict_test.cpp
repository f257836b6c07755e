// SPDX-License-Identifier: Apache-2.0
// The verdict over ranks, from digests made by hand: every planted fault with its repaired twin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/fleet/verdict.h"

namespace nanhunt::fleet {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint32_t kWorld = 8;

std::vector<Digest> healthy() {
  std::vector<Digest> ranks(kWorld);
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    Digest& one = ranks[rank];
    one.rank = rank;
    one.world_size = kWorld;
    one.host = rank < 4 ? "a" : "b";
    one.nanhunt = "0.1.0";
    one.ended = true;
    one.status = VerdictStatus::kClean;
    one.steps = 100;
    one.last_step = one.clean_through = 99;
    one.replicas = Replicas{0, kWorld};
    for (std::uint32_t step = 0; step < 100; step += 8) one.checksums.emplace_back(step, 1000 + step);
  }
  return ranks;
}

DigestOrigin origin(std::uint32_t step, std::uint32_t micro_batch = 0, FindingClass cls = FindingClass::kOverflow, const char* op = "mm") {
  DigestOrigin one;
  one.place.step = one.first_step = one.last_step = step;
  one.place.micro_batch = micro_batch;
  one.place.op = op;
  one.cls = cls;
  one.severity = Severity::kFault;
  return one;
}

void give(Digest& one, const DigestOrigin& what) {
  one.status = VerdictStatus::kFault;
  one.origins.push_back(what);
  one.clean_through = std::min(*one.clean_through, what.place.step - 1);
}

void bring(Digest& one, std::uint32_t step) {
  one.status = VerdictStatus::kFault;
  one.arrival = DigestArrival{step, 0, Severity::kFault, "allreduce", "data", step, kWorld, 0};
  one.clean_through = std::min(*one.clean_through, step - 1);
}

FleetVerdict verdict_of(std::vector<Digest> ranks) {
  Digests digests;
  choose_attempts(std::move(ranks), digests);
  return judge_fleet(std::move(digests));
}

TEST(FleetVerdict, of_healthy_ranks_is_clean_and_says_through_which_step_all_of_them_are) {
  std::vector<Digest> ranks = healthy();
  ranks[5].last_step = ranks[5].clean_through = 40;
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.status, VerdictStatus::kClean);
  EXPECT_EQ(v.headline, "No harmful NaN or Inf on 8 ranks through step 40");
  EXPECT_THAT(v.notes, IsEmpty());
  EXPECT_THAT(v.to_open, IsEmpty());
}

TEST(FleetVerdict, orders_by_step_and_micro_batch_whatever_clocks_say) {
  std::vector<Digest> ranks = healthy();
  give(ranks[2], origin(7, 3));
  give(ranks[6], origin(7, 1, FindingClass::kInvalid, "log"));
  for (const std::uint32_t rank : {0u, 1u}) bring(ranks[rank], 8);
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.first_rank, 6u);
  EXPECT_THAT(v.ranks, ElementsAre(6));
  EXPECT_EQ(v.other_origins, 1u);
  EXPECT_THAT(v.reached, ElementsAre(0, 1));
  EXPECT_EQ(v.clean_through, 6u);
  EXPECT_EQ(v.to_open.front(), 6u);
  EXPECT_LE(v.to_open.size(), kMaxOpened);
}

TEST(FleetVerdict, counts_ranks_that_have_the_same_fault_later_among_those_on_which_it_began) {
  std::vector<Digest> ranks = healthy();
  for (const std::uint32_t rank : {4u, 5u, 6u, 7u}) give(ranks[rank], origin(10 + rank));
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.headline, "All 4 ranks of host b: overflow at mm, step 14");
  EXPECT_THAT(v.first_ranks, ElementsAre(4));
  EXPECT_THAT(v.notes, Contains(HasSubstr("It came first on rank 4, step 14")));
}

TEST(FleetVerdict, of_a_lone_rank_whose_numbers_changed_by_themselves_suspects_its_card_and_of_an_overflow_does_not) {
  std::vector<Digest> ranks = healthy();
  ranks[3].accelerator_id = "GPU-7";
  std::vector<Digest> twin = ranks;
  give(ranks[3], origin(9, 0, FindingClass::kCorruption));
  give(twin[3], origin(9));
  EXPECT_THAT(verdict_of(ranks).notes, Contains(HasSubstr("Run rank 3 (host a, GPU-7) elsewhere")));
  EXPECT_THAT(verdict_of(twin).notes, Not(Contains(HasSubstr("elsewhere"))));
}

TEST(FleetVerdict, does_not_count_what_came_back_to_ranks_on_which_it_had_begun) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) give(one, origin(9));
  for (const std::uint32_t rank : {1u, 2u}) bring(ranks[rank], 12);
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.headline, "All 8 ranks: overflow at mm, step 9");
  EXPECT_THAT(v.reached, IsEmpty());
  EXPECT_FALSE(v.came_by);
}

TEST(FleetVerdict, says_that_the_origin_is_missing_where_bad_numbers_came_from_a_rank_without_a_digest) {
  std::vector<Digest> ranks = healthy();
  for (const std::uint32_t rank : {0u, 1u, 2u}) bring(ranks[rank], 12);
  give(ranks[5], origin(15));
  ranks.erase(ranks.begin() + 3);
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_TRUE(v.origin_is_missing);
  EXPECT_EQ(v.headline, "Bad numbers came to 3 of 8 ranks by allreduce 12 of group data, step 12; rank 3 left no digest");
  EXPECT_THAT(v.notes, Contains("1 of 8 ranks left no digest: rank 3. What they did is not known."));
  EXPECT_THAT(v.to_open, ElementsAre(0, 1, 2, 4)) << "those to which it came, and a healthy one";
}

TEST(FleetVerdict, calls_no_rank_missing_where_all_left_a_digest) {
  std::vector<Digest> ranks = healthy();
  bring(ranks[1], 12);
  ranks[1].arrival->members = 1;
  ranks[1].arrival->lowest = 4;
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.headline, "Bad numbers came to 1 of 8 ranks by allreduce 12 of group data, step 12; why what rank 4 gave was bad is not recorded");
  EXPECT_EQ(v.to_open.front(), 4u);
}

TEST(FleetVerdict, does_not_order_by_the_micro_batches_of_different_ranks) {
  std::vector<Digest> ranks = healthy();
  give(ranks[0], origin(3, 2));
  bring(ranks[1], 3);
  EXPECT_EQ(verdict_of(ranks).first_rank, 0u);
}

TEST(FleetVerdict, keeps_the_digest_of_the_launch_of_most_while_another_begins) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) one.job = "slurm 7.0.0", one.run = "one";
  std::vector<Digest> restarted = ranks;
  give(ranks[0], origin(5));
  Digest next = ranks[1];
  next.job = "slurm 7.0.1";
  next.attempt = 1;
  next.steps = 0;
  next.last_step.reset();
  ranks.push_back(next);
  EXPECT_EQ(verdict_of(ranks).first_rank, 0u);
  EXPECT_THAT(verdict_of(ranks).digests.older, IsEmpty());
  // ... and once the others are there too, it is theirs that count, and no fault of the launch before
  for (Digest& one : restarted) one.job = "slurm 7.0.1", one.attempt = 1;
  ranks.pop_back();
  ranks.insert(ranks.end(), restarted.begin(), restarted.end());
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
}

TEST(FleetVerdict, compares_only_ranks_whose_replicas_are_of_the_same_parameters) {
  std::vector<Digest> ranks = healthy();
  ranks[5].replicas->of = "other";
  for (auto& [step, checksum] : ranks[5].checksums) checksum += 1;
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
}

TEST(FleetVerdict, is_inconclusive_where_healthy_ranks_are_all_that_is_there) {
  std::vector<Digest> ranks = healthy();
  ranks.pop_back();
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kInconclusive);
  ranks = healthy();
  ranks[2].last_step.reset();
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kInconclusive);
}

TEST(FleetVerdict, finds_the_replica_that_no_longer_holds_the_same_parameters) {
  std::vector<Digest> ranks = healthy();
  for (auto& [step, checksum] : ranks[6].checksums) checksum += step >= 48 ? 1 : 0;
  const FleetVerdict v = verdict_of(ranks);
  ASSERT_TRUE(v.parting);
  EXPECT_EQ(v.status, VerdictStatus::kFault);
  EXPECT_EQ(v.headline, "Rank 6 no longer holds the same parameters as 7 other replicas, since a step between 40 and 48");
  EXPECT_THAT(v.parting->minority, ElementsAre(6));
  EXPECT_EQ(v.clean_through, 40u);
  EXPECT_EQ(v.to_open.front(), 6u);
  EXPECT_THAT(v.notes, Contains(HasSubstr("Run rank 6 (host b) elsewhere")));
}

TEST(FleetVerdict, compares_only_ranks_that_are_said_to_be_replicas) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) {
    one.replicas.reset();
    for (auto& [step, checksum] : one.checksums) checksum += one.rank;
  }
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
  EXPECT_THAT(verdict_of(ranks).notes, ElementsAre(HasSubstr("were not compared")));
}

TEST(FleetVerdict, does_not_say_which_of_two_replicas_is_wrong) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) one.replicas = Replicas{one.rank / 2 * 2, 2};
  ranks[4].checksums.back().second += 1;
  const FleetVerdict v = verdict_of(ranks);
  ASSERT_TRUE(v.parting);
  EXPECT_THAT(v.parting->minority, IsEmpty());
  EXPECT_EQ(v.headline, "2 replicas of the same parameters no longer hold the same numbers, since a step between 88 and 96");
}

TEST(FleetVerdict, takes_parameters_that_part_after_the_first_fault_for_its_consequence) {
  std::vector<Digest> ranks = healthy();
  give(ranks[1], origin(50));
  ranks[1].checksums.back().second += 1;
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.headline, "Rank 1 alone: overflow at mm, step 50");
  EXPECT_THAT(v.notes, Contains(HasSubstr("what came of it")));
}

TEST(FleetVerdict, compares_what_is_there_of_ranks_that_are_at_different_steps) {
  std::vector<Digest> ranks = healthy();
  ranks[2].checksums.resize(3);
  ranks[3].checksums.clear();
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
}

TEST(FleetVerdict, of_warnings_alone_is_a_warning) {
  std::vector<Digest> ranks = healthy();
  give(ranks[1], origin(5));
  ranks[1].origins[0].severity = Severity::kWarning;
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kWarning);
  give(ranks[2], origin(9));
  EXPECT_EQ(verdict_of(ranks).first_rank, 2u);
}

TEST(FleetVerdict, says_that_ranks_are_of_different_versions_or_go_on) {
  std::vector<Digest> ranks = healthy();
  ranks[1].nanhunt = "0.0.9";
  ranks[2].ended = false;
  ranks[2].last_step = ranks[2].clean_through = 40;
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_THAT(v.notes, ElementsAre("Ranks differ in the version of nanhunt: 0.0.9 and 0.1.0.",
                                   "Rank 2 has not ended: its last step is 40, the fastest rank's 99. Killed, hanging, or still going."));
  EXPECT_EQ(v.status, VerdictStatus::kInconclusive) << "the others have ended";
  for (Digest& one : ranks) one.ended = false;
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
}

TEST(FleetVerdict, takes_the_attempt_of_most_ranks_and_names_those_that_left_only_an_earlier_one) {
  std::vector<Digest> ranks = healthy();
  std::vector<Digest> both = ranks;
  for (Digest& one : ranks) one.attempt = 1;
  ranks[7].attempt = 0;
  ranks[7].status = VerdictStatus::kFault;
  give(ranks[7], origin(3));
  both.pop_back();
  ranks.insert(ranks.end(), both.begin(), both.end());
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_THAT(v.digests.older, ElementsAre(7));
  EXPECT_EQ(v.status, VerdictStatus::kInconclusive);
  EXPECT_FALSE(v.first_rank);
}

TEST(FleetVerdict, leaves_out_a_rank_whose_run_the_others_have_left_behind) {
  std::vector<Digest> first = healthy(), second = healthy();
  for (Digest& one : first) one.run = "one", one.job = "slurm 7.0.0";
  for (Digest& one : second) one.run = "two", one.job = "slurm 7.0.0", one.attempt = 1;
  give(first[2], origin(5));
  second.erase(second.begin() + 2);  // rank 2 left nothing of the second launch
  first.insert(first.end(), second.begin(), second.end());
  const FleetVerdict v = verdict_of(first);
  EXPECT_THAT(v.digests.older, ElementsAre(2));
  EXPECT_FALSE(v.first_rank);
  EXPECT_THAT(v.notes, Contains("7 digests of other launches are not looked at."));
}

TEST(FleetVerdict, counts_what_another_process_of_the_same_rank_and_run_saw) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) one.run = "one";
  Digest child = ranks[3];
  child.attempt = 1;
  give(ranks[3], origin(9));
  ranks.push_back(child);
  const FleetVerdict v = verdict_of(ranks);
  EXPECT_EQ(v.first_rank, 3u);
  EXPECT_EQ(v.clean_through, 8u);
}

TEST(FleetVerdict, goes_by_the_job_where_launchers_name_one) {
  std::vector<Digest> ranks = healthy();
  for (Digest& one : ranks) {
    one.job = "slurm 7.1";
    one.attempt = one.rank < 4 ? 1 : 0;  // four ranks ran before, four are new
  }
  EXPECT_EQ(verdict_of(ranks).status, VerdictStatus::kClean);
  ranks[7].job = "slurm 7.0";
  EXPECT_THAT(verdict_of(ranks).digests.older, ElementsAre(7));
}

}  // namespace
}  // namespace nanhunt::fleet
