// SPDX-License-Identifier: Apache-2.0
// Fleets with a planted fault: how the ranks lie, who is hit, and what a verdict has to say.
#pragma once

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/fleet/read_digests.h"
#include "src/fleet/verdict.h"
#include "tests/fleet/rank_program.h"

namespace nanhunt::fleet_tests {

enum class Planted { kNothing, kCalibration, kOneRank, kOneCard, kHost, kStage, kExpert, kAll, kSilent };
const char* planted_name(Planted planted);

struct SimulatedFleet {
  std::uint32_t size = 0;
  Planted planted = Planted::kNothing;
  std::vector<RankIdentity> ranks;
  std::vector<RankPlan> plans;      // of each rank
  std::set<std::uint32_t> hit;      // ranks on which it begins
  std::set<std::uint32_t> missing;  // ranks that leave nothing
  std::vector<fleet::Place> place;  // that all of `hit` share and nobody else does; empty: none, or one rank
};

// `missing_share`: of all ranks.
SimulatedFleet draw_fleet(std::mt19937& random, std::uint32_t size, Planted planted, double missing_share);

// Each rank that is there trained and recorded, and read back.
fleet::Digests record_fleet(const SimulatedFleet& fleet);
// Of each plan one rank is trained and recorded; the digests of others with the same plan are its, but for where they
// stand. For fleets that are too large to be recorded whole.
fleet::Digests digests_of(const SimulatedFleet& fleet);

// What is wrong with the verdict; "": nothing.
std::string judge(const SimulatedFleet& fleet, const fleet::FleetVerdict& verdict);

}  // namespace nanhunt::fleet_tests
