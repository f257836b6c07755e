// SPDX-License-Identifier: Apache-2.0
// How the infinity of an origin became NaN, and where forward had dropped it: 0 * Inf in backward.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

using EvidenceMap = std::map<std::uint64_t, std::vector<EvidenceRecord>>;  // by op

// A sentence or two with the numbers that met in the op that made NaN; empty where they were not recorded.
std::string returned_text(const Case& c, const EvidenceMap& evidence);

}  // namespace nanhunt::analyze
