// SPDX-License-Identifier: Apache-2.0
// Data that were made where no operation is heard: in another process, in another thread of the program.
#pragma once

#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

// What would have the line named that made bad data, where the run noted who else may have made them.
void advise_elsewhere(std::vector<Finding>& findings, const Coverage& coverage);

}  // namespace nanhunt::analyze
