// SPDX-License-Identifier: Apache-2.0
// A run folder as text: the readable twin of a golden trace.
#pragma once

#include <string>

#include "nanhunt/status.h"

namespace nanhunt::trace_testing {

Result<std::string> golden_text(const std::string& run);

}  // namespace nanhunt::trace_testing
