// SPDX-License-Identifier: Apache-2.0
// Which attempts of a run a verb looks at.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::cli {

// The attempts asked for; without `attempt`, the newest of each rank.
Result<std::vector<AttemptTrace>> choose_attempts(const std::string& run, std::optional<std::uint32_t> rank,
                                                  std::optional<std::uint32_t> attempt);

// "1 chunk and 312 rows lost, 40 bytes skipped"; empty when nothing is damaged.
std::string describe_damage(const TraceHealth& health);

}  // namespace nanhunt::cli
