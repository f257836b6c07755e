// SPDX-License-Identifier: Apache-2.0
// What the sentinel alone has seen, in findings: what replays say of them, and bad steps whose ops the trace does not
// hold.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/ranks/rank_verdict.h"
#include "src/analyze/watch/norm_watch.h"
#include "src/analyze/watch/sentinel_watch.h"

namespace nanhunt::analyze {

// Adds what replays say of findings, and the findings for what no replay showed. `growths`: training that diverged.
// `trained`: else each step is a forward.
void report_sentinel(std::vector<Finding>& findings, const SentinelWatch& sentinel, const std::vector<Growth>& growths,
                     const RankVerdict& others, bool trained);

}  // namespace nanhunt::analyze
