// SPDX-License-Identifier: Apache-2.0
// One finding in words.
#pragma once

#include "reports/views/report_model.h"

namespace nanhunt::reports {

// `many_ranks`: the run had more than one, so a reader wants to know which.
FindingView view_finding(const Finding& finding, bool many_ranks = false);

}  // namespace nanhunt::reports
