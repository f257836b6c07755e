// SPDX-License-Identifier: Apache-2.0
// exploding: training as a whole grew until something overflowed; where it did is arbitrary.
#pragma once

#include "nanhunt/analyzer.h"
#include "src/analyze/watch/norm_watch.h"

namespace nanhunt::analyze {

// Turns the finding of an overflow into one about the growth before it.
void report_exploding(Finding& f, const Growth& growth);

}  // namespace nanhunt::analyze
