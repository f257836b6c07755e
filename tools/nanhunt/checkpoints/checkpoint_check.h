// SPDX-License-Identifier: Apache-2.0
// `nanhunt check` of checkpoints: one, or a series of which the newest decides.
#pragma once

#include <string>
#include <vector>

namespace nanhunt::cli {

struct CheckpointCheckOptions {
  bool fail_on_warning = false, json = false, full = false;
};

// `paths`: newest first, of `place`. Prints, and gives the exit status.
int check_checkpoints(const std::string& place, const std::vector<std::string>& paths,
                      const CheckpointCheckOptions& options);

}  // namespace nanhunt::cli
