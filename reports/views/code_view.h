// SPDX-License-Identifier: Apache-2.0
// The few lines around the one that ran, as the first screen of every view shows them.
#pragma once

#include <cstddef>
#include <vector>

#include "reports/views/source_view.h"

namespace nanhunt::reports {

// At most `most` lines with the one that ran among them, without the indent that all of them share, and without blank
// lines at either end; more where the statement that ran takes more. Empty where the code is not known.
std::vector<CodeLine> lines_around(const FrameView& frame, std::size_t most);

// That statement in one line, with the numbers of its own: "9-12".
CodeLine statement_in_line(const FrameView& frame);

}  // namespace nanhunt::reports
