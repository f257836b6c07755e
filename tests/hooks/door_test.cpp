// SPDX-License-Identifier: Apache-2.0
// Which door a run on a device gets, and what is said of it.
#include "hooks/engine/sentinel/door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nanhunt::hooks {
namespace {

using ::testing::HasSubstr;
using Way = DoorPlan::Way;

DoorFacts on_a_device(Door wanted = Door::kAuto) {
  return {.wanted = wanted, .on_device = true, .copy_bytes = 1'500'000, .copy_budget = 2'000'000, .close_bytes = 1000};
}

TEST(ChooseDoor, costs_nothing_on_the_cpu_whatever_is_wanted) {
  for (const Door wanted : {Door::kAuto, Door::kSync, Door::kLate}) {
    const DoorPlan plan = choose_door({.wanted = wanted, .copy_bytes = 10, .copy_budget = 100});
    EXPECT_EQ(plan.way, Way::kFree);
    EXPECT_FALSE(plan.copies);
    EXPECT_EQ(plan.text, "");
  }
}

TEST(ChooseDoor, takes_the_read_of_a_loss_scaler_where_there_is_one) {
  DoorFacts facts = on_a_device();
  facts.scaler_reads = true;
  DoorPlan plan = choose_door(facts);
  EXPECT_EQ(plan.way, Way::kScaler);
  EXPECT_FALSE(plan.copies);
  EXPECT_THAT(plan.text, HasSubstr("is not replayed"));
  facts.copy_bytes = 1000;  // a small model is copied at any door
  EXPECT_TRUE(choose_door(facts).copies);
  facts.wanted = Door::kLate;
  EXPECT_EQ(choose_door(facts).way, Way::kLate);
}

TEST(ChooseDoor, is_late_where_the_copy_fits_and_says_what_it_takes) {
  const DoorPlan plan = choose_door(on_a_device());
  EXPECT_EQ(plan.way, Way::kLate);
  EXPECT_TRUE(plan.copies);
  EXPECT_EQ(plan.bytes, 1'500'000U);
  EXPECT_THAT(plan.text, HasSubstr("door late"));
  EXPECT_THAT(plan.text, HasSubstr("1.5 MB"));
}

TEST(ChooseDoor, is_sync_where_the_copy_does_not_fit_and_says_why) {
  for (const Door wanted : {Door::kAuto, Door::kLate}) {
    DoorFacts facts = on_a_device(wanted);
    facts.copy_budget = 1'000'000;
    const DoorPlan plan = choose_door(facts);
    EXPECT_EQ(plan.way, Way::kSync);
    EXPECT_FALSE(plan.copies);
    EXPECT_EQ(plan.bytes, 0U);
    EXPECT_THAT(plan.text, HasSubstr("would take 1.5 MB, and 1.0 MB are allowed"));
  }
  EXPECT_EQ(choose_door(on_a_device(Door::kSync)).way, Way::kSync);
}

TEST(ChooseDoor, needs_no_copy_where_nothing_is_replayed) {
  DoorFacts facts = on_a_device();
  facts.copy_budget = 0;
  facts.replays = false;
  const DoorPlan plan = choose_door(facts);
  EXPECT_EQ(plan.way, Way::kLate);
  EXPECT_FALSE(plan.copies);
  EXPECT_THAT(plan.text, HasSubstr("nothing is replayed"));
}

TEST(DoorNames, go_both_ways) {
  for (const Door door : {Door::kAuto, Door::kSync, Door::kLate}) EXPECT_EQ(parse_door(door_name(door)), door);
  EXPECT_EQ(parse_door("open"), std::nullopt);
}

}  // namespace
}  // namespace nanhunt::hooks
