// SPDX-License-Identifier: Apache-2.0
// Analysing a run for a verb, with a word about damage.
#pragma once

#include <string>

#include "nanhunt/analyzer.h"

namespace nanhunt::cli {

bool is_damaged(const Analysis& analysis);
// analyze_run; says on stderr when the trace is damaged.
Result<Analysis> load_analysis(const std::string& run);

}  // namespace nanhunt::cli
