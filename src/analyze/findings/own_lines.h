// SPDX-License-Identifier: Apache-2.0
// Lines of the program's own where an installed package called the operation.
#pragma once

#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// The call site of `f` where it is the program's, else the nearest line of the program above it: "train.py:38". A file is
// called as in the call sites of `all`, or by as much of its path as tells it from those in their frames.
std::string own_line(const Finding& f, const std::vector<Finding>& all);

// Of each finding the call site becomes its own line. Frames keep the package's.
void lead_to_own_lines(std::vector<Finding>& findings);

}  // namespace nanhunt::analyze
