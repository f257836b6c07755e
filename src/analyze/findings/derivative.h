// SPDX-License-Identifier: Apache-2.0
// An op and the derivative that autograd took of it.
#pragma once

#include <string>

#include "src/analyze/graph/case.h"

namespace nanhunt::analyze {

class ValueGraph;

// The derivative of an op at the same singular argument: log(0) and then log_backward at that 0.
bool is_derivative_of(const Case& backward, const Case& forward);

// Which call made an infinity of the same argument in forward, where something absorbed it there: "" where none did.
std::string set_up_text(const Case& backward, const ValueGraph& graph);

}  // namespace nanhunt::analyze
