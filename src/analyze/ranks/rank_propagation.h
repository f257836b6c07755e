// SPDX-License-Identifier: Apache-2.0
// Words for what passed between ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/ranks/rank_verdict.h"

namespace nanhunt::analyze {

// "rank 2", "ranks 0, 1 and 3".
std::string ranks_text(const std::vector<std::uint32_t>& ranks);

// What began here, on rank `rank`, came to others: into the finding's evidence, sinks and chain.
void report_rank_propagation(Finding& f, const std::vector<Arrival>& arrivals, std::uint32_t rank);

}  // namespace nanhunt::analyze
