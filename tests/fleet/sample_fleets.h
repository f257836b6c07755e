// SPDX-License-Identifier: Apache-2.0
// Verdicts over made-up digests, for the map and the page of many ranks.
#pragma once

#include <cstdint>
#include <string>

#include "src/fleet/verdict.h"

namespace nanhunt::fleet_tests {

struct SampleFleet {
  std::uint32_t ranks = 64, steps = 100;
  std::uint32_t hit_stage = 2;  // of 4, in which it begins
  std::uint32_t hit_step = 70;
  std::uint32_t missing_every = 0;  // ranks that left no digest: the last of each so many; 0: none
  bool varied = false;              // each rank has a host of its own kind, a card, and other last steps
};

// Four pipeline stages, eight ranks a host. The overflow comes to all others one step later.
fleet::FleetVerdict make_stage_fleet(const SampleFleet& sample);
fleet::FleetVerdict make_clean_fleet();
fleet::FleetVerdict make_parted_fleet();
fleet::FleetVerdict make_hostile_fleet();  // names that are markup, scripts and escapes; absurd numbers
fleet::FleetVerdict make_gapped_fleet();   // ranks that are missing, damaged, of another launch, and not ended

// Text that a page must show as text.
inline constexpr char kHostileName[] = "<img src=x onerror=alert(1)>";

}  // namespace nanhunt::fleet_tests
