// SPDX-License-Identifier: Apache-2.0
// Fleets drawn at random, each with a planted fault or none: the first rank and the shape, and nobody blamed for nothing.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/fleet/simulated_fleet.h"

namespace nanhunt::fleet_tests {
namespace {

constexpr std::array kFaults = {Planted::kOneRank, Planted::kOneCard, Planted::kHost, Planted::kStage,
                                Planted::kExpert, Planted::kAll, Planted::kSilent};

// `count` fleets of `size` ranks, every other one with 5 % of its ranks missing; the number that was judged right.
template <typename Kinds, typename Read>
int right_of(int count, std::uint32_t size, std::uint32_t seed, const Kinds& kinds, Read&& read) {
  std::mt19937 random(seed);
  int right = 0;
  for (int i = 0; i < count; ++i) {
    const Planted planted = kinds[static_cast<std::size_t>(i / 2) % kinds.size()];
    const SimulatedFleet fleet = draw_fleet(random, size, planted, i % 2 == 0 ? 0 : 0.05);
    const fleet::FleetVerdict verdict = fleet::judge_fleet(read(fleet));
    const std::string wrong = judge(fleet, verdict);
    right += wrong.empty() ? 1 : 0;
    EXPECT_EQ(wrong, "") << planted_name(planted) << ", fleet " << i << " of " << size << " ranks: " << verdict.headline;
  }
  return right;
}

TEST(SimulatedFleets, faults_in_fleets_of_8_that_are_recorded_whole_have_the_right_first_rank_and_shape) {
  EXPECT_EQ(right_of(112, 8, 1, kFaults, record_fleet), 112);
}

TEST(SimulatedFleets, faults_in_fleets_of_512_have_the_right_first_rank_and_shape) {
  EXPECT_EQ(right_of(60, 512, 2, kFaults, digests_of), 60);
}

TEST(SimulatedFleets, faults_in_fleets_of_10000_have_the_right_first_rank_and_shape) {
  EXPECT_EQ(right_of(28, 10000, 3, kFaults, digests_of), 28);
}

constexpr std::array kHealthy = {Planted::kNothing, Planted::kCalibration};

TEST(SimulatedFleets, nobody_is_blamed_in_healthy_fleets_of_8) {
  EXPECT_EQ(right_of(48, 8, 4, kHealthy, record_fleet), 48);
}

TEST(SimulatedFleets, nobody_is_blamed_in_healthy_fleets_of_512) {
  EXPECT_EQ(right_of(40, 512, 5, kHealthy, digests_of), 40);
}

TEST(SimulatedFleets, nobody_is_blamed_in_healthy_fleets_of_10000) {
  EXPECT_EQ(right_of(12, 10000, 6, kHealthy, digests_of), 12);
}

}  // namespace
}  // namespace nanhunt::fleet_tests
