// SPDX-License-Identifier: Apache-2.0
// What descends from what a fault spoilt belongs to it, however much later it is met.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/birth.h"

namespace nanhunt::analyze {

// A call that brought in what an earlier fault of another rank left bad is no fault of its own.
void join_handed_on(std::vector<Finding>& findings);

// Weights, state or a buffer that a fault left bad, and what came of them unheard, are no second fault: they count as the
// first one's bad steps. `bad`: all steps of the run in which something that is trained was not finite.
void join_aftermath(std::vector<Finding>& findings, const StepSet& bad);

}  // namespace nanhunt::analyze
