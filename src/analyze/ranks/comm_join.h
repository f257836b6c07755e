// SPDX-License-Identifier: Apache-2.0
// Ranks put together: calls matched by their numbers in each group, badness followed from rank to rank back to where no
// other rank had given it.
#pragma once

#include <cstdint>
#include <vector>

#include "src/analyze/ranks/rank_pass.h"

namespace nanhunt::analyze {

// `ranks`: ended, ascending by rank. One verdict for each.
std::vector<RankVerdict> join_ranks(const std::vector<RankPass*>& ranks);

// Bad steps whose ops are not known, on ranks that another one may have made bad. Called by join_ranks.
void join_steps(const std::vector<RankPass*>& ranks, std::vector<RankVerdict>& verdicts);

// Replicas that no longer hold the same parameters. Called by join_ranks.
void join_replicas(const std::vector<RankPass*>& ranks, std::vector<RankVerdict>& verdicts);

}  // namespace nanhunt::analyze
