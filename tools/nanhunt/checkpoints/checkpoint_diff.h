// SPDX-License-Identifier: Apache-2.0
// `nanhunt diff` of two checkpoints.
#pragma once

#include <string>

namespace nanhunt::cli {

struct CheckpointDiffOptions {
  bool json = false;
};
// Prints, and gives the exit status.
int diff_checkpoints(const std::string& a, const std::string& b, const CheckpointDiffOptions& options);

}  // namespace nanhunt::cli
