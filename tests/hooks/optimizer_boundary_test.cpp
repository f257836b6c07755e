// SPDX-License-Identifier: Apache-2.0
// Which optimizer boundary a run on a device gets, and what is said of it.
#include "hooks/engine/sentinel/optimizer_boundary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nanhunt::hooks {
namespace {

using ::testing::HasSubstr;
using Way = BoundaryPlan::Way;

BoundaryFacts on_a_device(OptimizerBoundary wanted = OptimizerBoundary::kAuto) {
  return {.wanted = wanted, .on_device = true, .copy_bytes = 1'500'000, .copy_budget = 2'000'000, .close_bytes = 1000};
}

TEST(ChooseBoundary, costs_nothing_on_the_cpu_whatever_is_wanted) {
  for (const OptimizerBoundary wanted : {OptimizerBoundary::kAuto, OptimizerBoundary::kSync, OptimizerBoundary::kDeferred}) {
    const BoundaryPlan plan = choose_boundary({.wanted = wanted, .copy_bytes = 10, .copy_budget = 100});
    EXPECT_EQ(plan.way, Way::kFree);
    EXPECT_FALSE(plan.copies);
    EXPECT_EQ(plan.text, "");
  }
}

TEST(ChooseBoundary, takes_the_read_of_a_loss_scaler_where_there_is_one) {
  BoundaryFacts facts = on_a_device();
  facts.scaler_reads = true;
  BoundaryPlan plan = choose_boundary(facts);
  EXPECT_EQ(plan.way, Way::kScaler);
  EXPECT_FALSE(plan.copies);
  EXPECT_THAT(plan.text, HasSubstr("is not replayed"));
  facts.copy_bytes = 1000;  // a small model is copied at any optimizer boundary
  EXPECT_TRUE(choose_boundary(facts).copies);
  facts.wanted = OptimizerBoundary::kDeferred;
  EXPECT_EQ(choose_boundary(facts).way, Way::kDeferred);
}

TEST(ChooseBoundary, is_late_where_the_copy_fits_and_says_what_it_takes) {
  const BoundaryPlan plan = choose_boundary(on_a_device());
  EXPECT_EQ(plan.way, Way::kDeferred);
  EXPECT_TRUE(plan.copies);
  EXPECT_EQ(plan.bytes, 1'500'000U);
  EXPECT_THAT(plan.text, HasSubstr("boundary deferred"));
  EXPECT_THAT(plan.text, HasSubstr("1.5 MB"));
}

TEST(ChooseBoundary, is_sync_where_the_copy_does_not_fit_and_says_why) {
  for (const OptimizerBoundary wanted : {OptimizerBoundary::kAuto, OptimizerBoundary::kDeferred}) {
    BoundaryFacts facts = on_a_device(wanted);
    facts.copy_budget = 1'000'000;
    const BoundaryPlan plan = choose_boundary(facts);
    EXPECT_EQ(plan.way, Way::kSync);
    EXPECT_FALSE(plan.copies);
    EXPECT_EQ(plan.bytes, 0U);
    EXPECT_THAT(plan.text, HasSubstr("would take 1.5 MB, and 1.0 MB are allowed"));
  }
  EXPECT_EQ(choose_boundary(on_a_device(OptimizerBoundary::kSync)).way, Way::kSync);
}

TEST(ChooseBoundary, needs_no_copy_where_nothing_is_replayed) {
  BoundaryFacts facts = on_a_device();
  facts.copy_budget = 0;
  facts.replays = false;
  const BoundaryPlan plan = choose_boundary(facts);
  EXPECT_EQ(plan.way, Way::kDeferred);
  EXPECT_FALSE(plan.copies);
  EXPECT_THAT(plan.text, HasSubstr("nothing is replayed"));
}

TEST(BoundaryNames, go_both_ways) {
  for (const OptimizerBoundary boundary : {OptimizerBoundary::kAuto, OptimizerBoundary::kSync, OptimizerBoundary::kDeferred}) EXPECT_EQ(parse_boundary(boundary_name(boundary)), boundary);
  EXPECT_EQ(parse_boundary("open"), std::nullopt);
}

}  // namespace
}  // namespace nanhunt::hooks
