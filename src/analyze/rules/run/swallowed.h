// SPDX-License-Identifier: Apache-2.0
// An overflow that an op downstream made invisible: x / Inf = 0, tanh(Inf) = 1.
#pragma once

#include "nanhunt/analyzer.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/graph/swallow.h"

namespace nanhunt::analyze {

// Turns the finding of an overflow into one about its disappearance: a warning, or a fault where what it fed is dead.
void report_swallowed(Finding& f, const Swallow& swallow, const Names& names);

// The same of bad numbers that an op put others in place of, and that backward met again.
void report_replaced(Finding& f, const Swallow& swallow, const Names& names);

}  // namespace nanhunt::analyze
