// SPDX-License-Identifier: Apache-2.0
// Which attempts of a run a verb looks at.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::cli {

// The attempts asked for; without `attempt`, the newest of each rank.
Result<std::vector<AttemptTrace>> choose_attempts(const std::string& run, std::optional<std::uint32_t> rank,
                                                  std::optional<std::uint32_t> attempt);

// Hands the attempts to `read` one by one; damage, and what cannot be read at all, is told on stderr. kDone where any
// of them could be read, else the exit status of the last.
int read_each(const std::vector<AttemptTrace>& attempts, const std::function<Status(const AttemptTrace&)>& read);
// Of verbs that do so and write rows.
inline constexpr std::string_view kRowsExitStatuses =
    "  0  done (damage is told on stderr)\n  2  wrong usage\n  3  the run cannot be read\n  6  the rows could not be "
    "written";

// "1 chunk and 312 rows lost, 40 bytes skipped"; empty when nothing is damaged.
std::string describe_damage(const TraceHealth& health);

}  // namespace nanhunt::cli
