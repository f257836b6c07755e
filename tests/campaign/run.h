// SPDX-License-Identifier: Apache-2.0
// A run that is trained, watched and judged.
#pragma once

#include <string>
#include <vector>

#include "tests/campaign/faults/faults.h"

namespace nanhunt::campaign {

// Told by the engine and the numbers themselves, not by what judges.
struct RunLog {
  std::vector<double> losses, start, end;         // the last two: all parameters
  std::optional<std::uint32_t> first_bad_step;    // of a loss, gradient, parameter, state or buffer
  std::optional<Finding> answer;
};
// Trains into `folder`. Throws std::runtime_error when recording or analysis fails.
RunLog train_and_judge(const Settings& settings, const Plan& plan, bool faulty, const std::string& folder);

// A fault did harm if a loss is not finite that is in the clean run, or if parameters end farther from the clean run's
// than a quarter of the way that the clean run went.
bool did_harm(const RunLog& faulty, const RunLog& clean);

}  // namespace nanhunt::campaign
