// SPDX-License-Identifier: Apache-2.0
// Several ranks at level sentinel: after the reduction of gradients all of them are bad, and each rank's replay,
// without the reduction, tells whose own share was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/analyze/world.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint32_t kGradientBad = 1u << static_cast<unsigned>(TensorRole::kBoundaryGradient);
constexpr std::uint32_t kLossBad = 1u << static_cast<unsigned>(TensorRole::kLoss) | kGradientBad;

void clean_steps(World& w, int count) {
  for (int i = 0; i < count; ++i) {
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      w[rank].health();
      w[rank].end_step();
    }
  }
}

// A replay that showed where it began.
void replay_bad(TraceBuilder& t) {
  t.replay(ReplayResult::kBegin, "", ReplayTrigger::kGradient);
  const Handle a = t.value(finite().range(-1, 300).as(DType::kF16));
  const Handle g =
      t.in("fc1", Phase::kBackward).op("mul", {{"self", a}, {"other", a}}, finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
  t.replay(ReplayResult::kReproduced);
}
void replay_clean(TraceBuilder& t, ReplayResult result = ReplayResult::kClean) {
  t.replay(ReplayResult::kBegin, "", ReplayTrigger::kGradient);
  const Handle a = t.value(finite().as(DType::kF16));
  t.in("fc1", Phase::kBackward).op("mul", {{"self", a}, {"other", a}}, finite().as(DType::kF16));
  t.replay(result, "Nothing became bad in the replay.");
}

enum class Did { kBad, kClean, kDiffers, kRefused };

// Step 2 is bad in the gradients of every rank; `did` says what came of each rank's replay.
void trigger(World& w, const std::vector<Did>& did, std::uint32_t bad = kGradientBad, double loss = 1, double scale = 1,
          bool skipped = false) {
  clean_steps(w, 2);
  for (std::size_t rank = 0; rank < w.size(); ++rank) {
    if (did[rank] == Did::kBad) replay_bad(w[rank]);
    if (did[rank] == Did::kClean) replay_clean(w[rank]);
    if (did[rank] == Did::kDiffers) replay_clean(w[rank], ReplayResult::kDiffers);
    if (did[rank] == Did::kRefused) w[rank].replay(ReplayResult::kRefused, "A double backward cannot be replayed.");
    w[rank].health(bad, "fc1.weight");
    w[rank].end_step(loss, scale, skipped);
  }
}

TEST(RanksSentinel, the_rank_whose_replay_was_bad_is_named_and_the_others_caught_it) {
  World w(in_order(4));
  trigger(w, {Did::kClean, Did::kClean, Did::kBad, Did::kClean});
  const Analysis a = w.analysis({}, "sentinel");
  EXPECT_EQ(w.lines(a),
            "overflow | mul | fc1 | backward | step 2 | appear | observed @ 2 > 0 1 3 by the reduction of gradients\n");
  EXPECT_THAT(a.findings[0].evidence,
              Contains("Born on rank 2; it came to ranks 0, 1 and 3 through the reduction of gradients, step 2."));
}

TEST(RanksSentinel, without_a_bad_step_have_no_finding) {
  World w(in_order(4));
  clean_steps(w, 3);
  EXPECT_EQ(w.lines(w.analysis({}, "sentinel")), "clean\n");
}

TEST(RanksSentinel, one_rank_that_was_not_judged_keeps_the_run_from_being_clean) {
  // Given two ranks without a bad number, of which the second's step was never looked at,
  World w(in_order(2));
  clean_steps(w, 2);
  w[0].health();
  for (std::size_t rank = 0; rank < w.size(); ++rank) w[rank].end_step();
  // when they are judged together,
  const Analysis a = w.analysis({}, "sentinel");
  // then nobody calls the run clean, and the rank is named.
  EXPECT_EQ(a.verdict.status, VerdictStatus::kInconclusive);
  EXPECT_THAT(a.verdict.headline, HasSubstr("on rank 1 1 of 3 steps could not be judged"));
}

TEST(RanksSentinel, a_replay_with_other_numbers_that_stayed_finite_has_caught_it_too) {
  World w(in_order(2));
  trigger(w, {Did::kBad, Did::kDiffers});
  EXPECT_EQ(w.lines(w.analysis({}, "sentinel")),
            "overflow | mul | fc1 | backward | step 2 | appear | observed @ 0 > 1 by the reduction of gradients\n");
}

TEST(RanksSentinel, two_bad_replays_are_both_told) {
  World w(in_order(4));
  trigger(w, {Did::kBad, Did::kClean, Did::kClean, Did::kBad});
  EXPECT_EQ(w.lines(w.analysis({}, "sentinel")),
            "overflow | mul | fc1 | backward | step 2 | appear | observed @ 0 3 > 1 2 by the reduction of gradients\n");
}

TEST(RanksSentinel, all_clean_by_themselves_went_bad_between_them) {
  World w(in_order(4));
  trigger(w, std::vector<Did>(4, Did::kClean));
  const Analysis a = w.analysis({}, "sentinel");
  EXPECT_EQ(w.lines(a), "comm | - | - | comm | step 2 | unknown | observed @ 0 1 2 3\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("went bad between the ranks"));
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("the gradients of ranks 0, 1, 2 and 3 were finite"));
}

TEST(RanksSentinel, one_of_which_there_is_no_trace_may_have_been_the_bad_one) {
  World w(in_order(4));
  trigger(w, {Did::kClean, Did::kClean, Did::kBad, Did::kClean});
  const Analysis a = w.analysis({2}, "sentinel");
  EXPECT_EQ(w.lines(a), "comm | - | - | comm | step 2 | unknown | inferred @ 0 1 3\n");
  EXPECT_THAT(a.findings[0].explanation,
              HasSubstr("Or it came from rank 2, whose own gradients are not known: there is no trace"));
}

TEST(RanksSentinel, one_that_was_not_replayed_is_part_of_what_another_has_and_said_to_be_not_known) {
  World w(in_order(4));
  trigger(w, {Did::kClean, Did::kRefused, Did::kBad, Did::kClean});
  const Analysis a = w.analysis({}, "sentinel");
  ASSERT_EQ(a.findings.size(), 1u) << w.lines(a);
  EXPECT_THAT(a.findings[0].evidence, Contains(StartsWith("What rank 1 gave in that step is not known apart")));
  // and where no replay was bad, it may have been that one
  World none(in_order(4));
  trigger(none, {Did::kClean, Did::kRefused, Did::kClean, Did::kClean});
  const Analysis b = none.analysis({}, "sentinel");
  EXPECT_EQ(none.lines(b), "comm | - | - | comm | step 2 | unknown | inferred @ 0 1 2 3\n");
  EXPECT_THAT(b.findings[0].explanation, HasSubstr("Or it came from rank 1"));
}

TEST(RanksSentinel, none_of_which_was_replayed_are_one_finding) {
  World w(in_order(4));
  trigger(w, std::vector<Did>(4, Did::kRefused));
  EXPECT_EQ(w.lines(w.analysis({}, "sentinel")),
            "unexplained | - | - | backward | step 2 | unknown | inferred @ 0 1 2 3\n");
}

TEST(RanksSentinel, a_loss_that_was_bad_once_on_one_rank_is_that_ranks) {
  World w(in_order(4));
  clean_steps(w, 1);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    replay_clean(w[rank]);
    w[rank].health(rank == 3 ? kLossBad : kGradientBad, rank == 3 ? "loss" : "fc1.weight");
    w[rank].end_step(rank == 3 ? std::nan("") : 1);
  }
  EXPECT_EQ(
      w.lines(w.analysis({}, "sentinel")),
      "not_reproducible | - | - | loss | step 1 | unknown | observed @ 3 > 0 1 2 by the reduction of gradients\n");
}

TEST(RanksSentinel, a_sum_of_scaled_gradients_that_fits_at_a_lower_scale_is_calibration) {
  World w(in_order(2));
  trigger(w, {Did::kClean, Did::kClean}, kGradientBad, 1, 65536, /*skipped=*/true);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    w[rank].health();
    w[rank].end_step(1, 32768);
  }
  EXPECT_EQ(w.analysis({}, "sentinel").verdict.status, VerdictStatus::kCalibrating)
      << w.lines(w.analysis({}, "sentinel"));
}

TEST(RanksSentinel, renumbered_give_the_same_answer_renumbered) {
  const std::vector<std::vector<Did>> runs = {{Did::kClean, Did::kClean, Did::kBad, Did::kClean},
                                              {Did::kClean, Did::kClean, Did::kClean, Did::kClean},
                                              {Did::kBad, Did::kRefused, Did::kBad, Did::kClean},
                                              {Did::kRefused, Did::kDiffers, Did::kClean, Did::kClean}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    World plain(in_order(4)), renumbered({2, 3, 0, 1});
    trigger(plain, runs[i]);
    trigger(renumbered, runs[i]);
    EXPECT_EQ(renumbered.lines(renumbered.analysis()), plain.lines(plain.analysis())) << i;
    EXPECT_EQ(renumbered.lines(renumbered.analysis({2})), plain.lines(plain.analysis({2}))) << i << ", one missing";
  }
}

}  // namespace
}  // namespace nanhunt
