// SPDX-License-Identifier: Apache-2.0
// Remedies that were tried on the numbers that an origin read (ProbeRecord, kRemedy): which advice they leave standing.
#pragma once

#include <vector>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

// Says of advice what came of it. What came out finite goes first; what did not goes last, as tried in vain. Where the
// rule's own was tried in vain alone, others that came out finite are added.
void add_trials(std::vector<Advice>& advice, const std::vector<ProbeRecord>& probes, const Case& c);

}  // namespace nanhunt::analyze
