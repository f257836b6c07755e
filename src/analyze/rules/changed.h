// SPDX-License-Identifier: Apache-2.0
// Contents that changed although nothing that was watched wrote them: words for corruption and unseen_kernel.
#pragma once

#include "src/analyze/rules/rule.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// "parameter fc1.weight", "the output of exp in fc2".
std::string home_text(const Case& c);
// "between relu in fc1 (step 5) and mm in fc2 (step 5)"; empty: neither end is known.
std::string interval_text(const Case& c);
Diagnosis diagnose_change(const Case& c);

// Changes that did no harm that was seen: a warning where they were gross, else one piece of information for all.
void add_harmless_changes(std::vector<Finding>& findings, const ValueGraph& graph, Names& names);

}  // namespace nanhunt::analyze
