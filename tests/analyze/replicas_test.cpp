// SPDX-License-Identifier: Apache-2.0
// Ranks that hold the same parameters: told once they no longer do, and silent where they do or need not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/analyze/world.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Six healthy steps on four ranks; `checksum` of each rank and step.
void train(World& w, const std::function<std::uint64_t(std::size_t, std::uint32_t)>& checksum, bool replicated = true) {
  for (std::size_t rank = 0; rank < w.size(); ++rank) {
    if (replicated) w[rank].setup(SetupFact::kReplicas, "", "", DType::kF32, 0, "4");
    for (std::uint32_t step = 0; step < 6; ++step) {
      const Handle x = w[rank].value(finite());
      w[rank].mark(TensorRole::kLoss, "loss", w[rank].in("<loss>", Phase::kLoss).op("mean", {{"self", x}}, finite(1)));
      w[rank].health(0, "", 1, checksum(rank, step));
      w[rank].end_step();
    }
  }
}

TEST(Replicas, that_part_are_a_finding_of_the_one_that_differs_from_most) {
  World w(in_order(4));
  train(w, [](std::size_t rank, std::uint32_t step) { return 100 + step + (rank == 2 && step >= 3 ? 1u : 0u); });
  const Analysis a = w.analysis({}, "live");
  ASSERT_EQ(a.findings.size(), 1u) << w.lines(a);
  const Finding& f = a.findings[0];
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(f.cls, FindingClass::kCorruption);
  EXPECT_EQ(f.title, "Rank 2 no longer holds the same parameters as 3 other replicas, since a step between 2 and 3");
  EXPECT_THAT(f.ranks, ElementsAre(2));
  EXPECT_EQ(f.place.step, 3u);
  EXPECT_EQ(f.advice.at(0).id, "check-memory");
}

TEST(Replicas, that_stay_the_same_or_were_not_read_or_need_not_be_the_same_are_silent) {
  World same(in_order(4)), unread(in_order(4)), apart(in_order(4));
  train(same, [](std::size_t, std::uint32_t step) { return 100 + step; });
  train(unread, [](std::size_t rank, std::uint32_t step) { return rank == 2 && step >= 3 ? 0u : 100 + step; });
  train(apart, [](std::size_t rank, std::uint32_t step) { return 100 * rank + step; }, /*replicated=*/false);
  for (const World* w : {&same, &unread, &apart}) EXPECT_EQ(w->lines(w->analysis({}, "live")), "clean\n");
}

TEST(Replicas, that_never_were_the_same_are_a_mistake_of_the_program) {
  World w(in_order(4));
  train(w, [](std::size_t rank, std::uint32_t step) { return 100 * (rank + 1) + step; });
  const Analysis a = w.analysis({}, "live");
  ASSERT_EQ(a.findings.size(), 1u) << w.lines(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kApiMisuse);
  EXPECT_THAT(a.findings[0].title, HasSubstr("4 replicas of the same parameters hold different numbers, in step 0 already"));
  EXPECT_THAT(a.findings[0].ranks, ElementsAre(0, 1, 2, 3));
}

TEST(Replicas, that_part_after_a_fault_are_its_consequence) {
  World bad(in_order(4));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const Handle zero = bad[rank].value(finite().zeros(1));
    if (rank == 1)
      bad[rank].mark(TensorRole::kLoss, "loss", bad[rank].in("<loss>", Phase::kLoss).op("log", {{"self", zero}}, finite(8).neg_inf(1)));
    bad[rank].health(0, "", 1, 7);
    bad[rank].end_step();
  }
  train(bad, [](std::size_t rank, std::uint32_t step) { return 100 + step + (rank == 2 && step >= 3 ? 1u : 0u); });
  const Analysis a = bad.analysis({}, "live");
  ASSERT_EQ(a.findings.size(), 1u) << bad.lines(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kDivideByZero);
}

}  // namespace
}  // namespace nanhunt
