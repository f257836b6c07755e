// SPDX-License-Identifier: Apache-2.0
// fp32 against recipes of mixed precision as one offline page, with the look and the rules of report.html.
#pragma once

#include <string>

#include "nanhunt/precision.h"

namespace nanhunt::reports {

std::string render_precision_html(const PrecisionComparison& comparison);

}  // namespace nanhunt::reports
