// SPDX-License-Identifier: Apache-2.0
// Bad steps whose ops the trace does not hold, in findings, and what of a finding's harm the health of steps alone shows.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/ranks/rank_verdict.h"
#include "src/analyze/watch/health_watch.h"
#include "src/analyze/watch/norm_watch.h"

namespace nanhunt::analyze {

// `growths`: training that diverged. `trained`: else each step is a forward.
void report_unheard(std::vector<Finding>& findings, const HealthWatch& health, const std::vector<Growth>& growths,
                    const RankVerdict& others, bool trained);

}  // namespace nanhunt::analyze
