// SPDX-License-Identifier: Apache-2.0
// The end of every analysis: ranks together, findings in order with their ids, one verdict.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// Orders findings (faults before warnings before notes, earliest harm first, then rank), cuts them to max_findings,
// numbers them and states the verdict.
void conclude(Analysis& analysis, const AnalyzeOptions& options);

// Findings of a run of which a rank is missing are no more than inferred.
void doubt(std::vector<Analysis>& ranks);

// `ranks` ascending. The same fault on several ranks is one finding.
Analysis merge_ranks(std::vector<Analysis> ranks, const AnalyzeOptions& options);

}  // namespace nanhunt::analyze
