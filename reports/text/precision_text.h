// SPDX-License-Identifier: Apache-2.0
// fp32 against recipes of mixed precision on a terminal.
#pragma once

#include <string>

#include "nanhunt/precision.h"
#include "nanhunt/reporter.h"

namespace nanhunt::reports {

std::string render_precision_text(const PrecisionComparison& comparison, const TextOptions& options = {});

}  // namespace nanhunt::reports
