// SPDX-License-Identifier: Apache-2.0
// Golden files under tests/golden/reports. NANHUNT_REGENERATE=1 in the environment writes them anew.
#pragma once

#include <string>

namespace nanhunt::testing_reports {

void expect_golden(const std::string& name, const std::string& actual);

}  // namespace nanhunt::testing_reports
