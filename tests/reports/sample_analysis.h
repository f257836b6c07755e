// SPDX-License-Identifier: Apache-2.0
// Analyses built by hand, for tests of the reports.
#pragma once

#include "nanhunt/analyzer.h"

namespace nanhunt::testing_reports {

Analysis make_fault_analysis();  // eps lost in fp16 Adam: every field that a finding has
Analysis make_clean_analysis();
// Hostile: every name tries to get out of text, terminal or HTML.
Analysis make_hostile_analysis();

}  // namespace nanhunt::testing_reports
