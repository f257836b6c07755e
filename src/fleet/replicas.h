// SPDX-License-Identifier: Apache-2.0
// Replicated parameters: whether the ranks that hold the same ones still hold the same numbers.
#pragma once

#include <vector>

#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

// By step, then by the lowest rank of the replicas. Ranks whose checksum of a step is missing say nothing.
std::vector<Parting> find_partings(const std::vector<Digest>& ranks);

}  // namespace nanhunt::fleet
