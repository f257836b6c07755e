// SPDX-License-Identifier: Apache-2.0
// An op and the derivative that autograd took of it.
#pragma once

#include <string>

#include "src/analyze/graph/case.h"
#include "src/analyze/rules/rule.h"

namespace nanhunt::analyze {

class ValueGraph;

// The derivative of an op at the same singular argument: log(0) and then log_backward at that 0.
bool is_derivative_of(const Case& backward, const Case& forward);

// The op of forward whose bad numbers of the same argument something absorbed there; nullptr: none did.
const Birth* set_up_by(const Case& backward, const ValueGraph& graph);
// What such an op made, and what hid it.
std::string set_up_text(const Case& backward, const Birth& hidden);

// The selection that dropped an op's results, whose derivative then met a gradient of 0; and the advice to select what the
// op is given.
void add_selection(Diagnosis& d, FindingClass cls, const Case& c);

}  // namespace nanhunt::analyze
