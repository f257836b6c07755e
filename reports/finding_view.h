// SPDX-License-Identifier: Apache-2.0
// One finding in words.
#pragma once

#include "reports/report_model.h"

namespace nanhunt::reports {

FindingView view_finding(const Finding& finding);

}  // namespace nanhunt::reports
