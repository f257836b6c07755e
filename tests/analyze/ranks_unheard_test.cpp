// SPDX-License-Identifier: Apache-2.0
// Several ranks of which some were not heard: after the reduction of gradients all of them are bad.
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

void clean_steps(World& w, int count) {
  for (int i = 0; i < count; ++i) {
    for (std::size_t rank = 0; rank < w.size(); ++rank) {
      w[rank].health();
      w[rank].end_step();
    }
  }
}

enum class Did { kHeard, kUnheard };

// Step 2 is bad in the gradients of every rank. A rank that was heard made them so.
void bad_step(World& w, const std::vector<Did>& did) {
  clean_steps(w, 2);
  for (std::size_t rank = 0; rank < w.size(); ++rank) {
    TraceBuilder& t = w[rank];
    if (did[rank] == Did::kHeard) {
      const Handle a = t.value(finite().range(-1, 300).as(DType::kF16));
      const Handle g =
          t.in("fc1", Phase::kBackward).op("mul", {{"self", a}, {"other", a}}, finite().as(DType::kF16).inf(1));
      t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
    } else {
      t.unheard("The step was not heard: the budget had no room.");
    }
    t.health(kGradientBad, "fc1.weight");
    t.end_step();
  }
}

TEST(RanksUnheard, have_caught_what_a_rank_that_was_heard_made) {
  World w(in_order(4));
  bad_step(w, {Did::kUnheard, Did::kUnheard, Did::kHeard, Did::kUnheard});
  const Analysis a = w.analysis({}, "live");
  EXPECT_EQ(w.lines(a),
            "overflow | mul | fc1 | backward | step 2 | appear | observed @ 2 > 0 1 3 by the reduction of gradients\n");
  EXPECT_THAT(a.findings[0].evidence, Contains(StartsWith("What ranks 0, 1 and 3 gave in that step is not known apart")));
}

TEST(RanksUnheard, without_a_bad_step_have_no_finding) {
  World w(in_order(4));
  clean_steps(w, 3);
  EXPECT_EQ(w.lines(w.analysis({}, "live")), "clean\n");
}

TEST(RanksUnheard, one_rank_that_was_not_judged_keeps_the_run_from_being_clean) {
  // Given two ranks without a bad number, of which the second's step was never looked at,
  World w(in_order(2));
  clean_steps(w, 2);
  w[0].health();
  for (std::size_t rank = 0; rank < w.size(); ++rank) w[rank].end_step();
  // when they are judged together,
  const Analysis a = w.analysis({}, "live");
  // then nobody calls the run clean, and the rank is named.
  EXPECT_EQ(a.verdict.status, VerdictStatus::kInconclusive);
  EXPECT_THAT(a.verdict.headline, HasSubstr("on rank 1 1 of 3 steps could not be judged"));
}

TEST(RanksUnheard, all_of_them_are_one_finding) {
  World w(in_order(4));
  bad_step(w, std::vector<Did>(4, Did::kUnheard));
  EXPECT_EQ(w.lines(w.analysis({}, "live")),
            "unexplained | - | - | backward | step 2 | unknown | inferred @ 0 1 2 3\n");
}

TEST(RanksUnheard, two_that_were_heard_are_both_in_it) {
  World w(in_order(4));
  bad_step(w, {Did::kHeard, Did::kUnheard, Did::kUnheard, Did::kHeard});
  EXPECT_EQ(w.lines(w.analysis({}, "live")),
            "overflow | mul | fc1 | backward | step 2 | appear | observed @ 0 3 > 1 2 by the reduction of gradients\n");
}

TEST(RanksUnheard, renumbered_give_the_same_answer_renumbered) {
  const std::vector<std::vector<Did>> runs = {{Did::kUnheard, Did::kUnheard, Did::kHeard, Did::kUnheard},
                                              {Did::kUnheard, Did::kUnheard, Did::kUnheard, Did::kUnheard},
                                              {Did::kHeard, Did::kUnheard, Did::kHeard, Did::kUnheard}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    World plain(in_order(4)), renumbered({2, 3, 0, 1});
    bad_step(plain, runs[i]);
    bad_step(renumbered, runs[i]);
    EXPECT_EQ(renumbered.lines(renumbered.analysis()), plain.lines(plain.analysis())) << i;
    EXPECT_EQ(renumbered.lines(renumbered.analysis({2})), plain.lines(plain.analysis({2}))) << i << ", one missing";
  }
}

}  // namespace
}  // namespace nanhunt
