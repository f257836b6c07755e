// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/trigger_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanhunt::hunt {
namespace {

// Steps that are taken when every step of `bad` is judged.
std::vector<std::uint32_t> taken(TriggerPolicy& policy, const std::vector<std::uint32_t>& bad, Harm harm) {
  std::vector<std::uint32_t> out;
  for (const std::uint32_t step : bad) {
    if (policy.judge(step, harm) == Trigger::kTaken) out.push_back(step);
  }
  return out;
}

std::vector<std::uint32_t> from_to(std::uint32_t first, std::uint32_t last) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t step = first; step <= last; ++step) out.push_back(step);
  return out;
}

using Steps = std::vector<std::uint32_t>;

TEST(TriggerPolicy, the_first_step_of_a_streak_is_taken_and_then_one_in_a_hundred) {
  TriggerPolicy policy;
  EXPECT_EQ(taken(policy, from_to(7, 320), Harm::kHarm), (Steps{7, 107, 207, 307}));
}

TEST(TriggerPolicy, a_new_streak_is_taken_however_near_the_last_one) {
  TriggerPolicy policy;
  EXPECT_EQ(taken(policy, {3, 4, 6, 7, 9}, Harm::kHarm), (Steps{3, 6, 9}));
}

TEST(TriggerPolicy, a_run_is_taken_at_most_so_often) {
  TriggerPolicy policy({.max_triggers = 2});
  EXPECT_EQ(taken(policy, {1, 3, 5, 7}, Harm::kHarm), (Steps{1, 3}));
  EXPECT_EQ(policy.judge(9, Harm::kHarm), Trigger::kSpent);
  EXPECT_EQ(policy.triggers(), 2u);
}

TEST(TriggerPolicy, steps_that_a_scaler_skips_leave_half_of_the_takings_to_faults) {
  TriggerPolicy policy({.max_triggers = 4});
  EXPECT_EQ(taken(policy, {1, 3, 5, 7}, Harm::kScaled), (Steps{1, 3}));
  EXPECT_EQ(taken(policy, {11, 13, 15}, Harm::kHarm), (Steps{11, 13}));
}

TEST(TriggerPolicy, a_streak_that_gets_worse_is_taken_again) {
  TriggerPolicy policy;
  EXPECT_EQ(policy.judge(3, Harm::kScaled), Trigger::kTaken);
  EXPECT_EQ(policy.judge(4, Harm::kScaled), Trigger::kWaits);
  EXPECT_EQ(policy.judge(5, Harm::kHarm), Trigger::kTaken);
  EXPECT_EQ(policy.judge(6, Harm::kHarm), Trigger::kWaits);
}

TEST(TriggerPolicy, a_step_is_taken_once_though_it_is_judged_twice) {
  TriggerPolicy policy;
  EXPECT_EQ(policy.judge(3, Harm::kNone), Trigger::kNone);
  EXPECT_EQ(policy.judge(3, Harm::kScaled), Trigger::kTaken);
  EXPECT_EQ(policy.judge(3, Harm::kHarm), Trigger::kNone);
}

TEST(TriggerPolicy, skips_without_end_are_no_calibration) {
  TriggerPolicy policy;
  EXPECT_EQ(taken(policy, from_to(0, kLongStreak), Harm::kScaled), (Steps{0, kLongStreak}));
}

}  // namespace
}  // namespace nanhunt::hunt
