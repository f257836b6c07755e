// SPDX-License-Identifier: Apache-2.0
// A comparison of fp32 with recipes of mixed precision: nanhunt.precision, version 1. Its contract is
// ../schema/nanhunt.precision.schema.json.
#pragma once

#include <string>

#include "nanhunt/precision.h"

namespace nanhunt::reports {

// The same numbers give the same bytes; what a clock measured stands under "volatile".
std::string render_precision_json(const PrecisionComparison& comparison);

}  // namespace nanhunt::reports
