// SPDX-License-Identifier: Apache-2.0
// Progress: where a loop stands within its epoch, as bars and training scripts print it without a name.
#pragma once

#include <optional>
#include <string_view>

namespace nanhunt::autopsy {

struct Progress {
  double at = 0, of = 0;
  std::optional<double> epoch;  // that stands before it
};

// "45/100" of a bar, "[0][130/5005]", "[0/5][50/1583]"; not "Epoch 3/10", nor what is followed by a share, for that
// counts samples: "[1280/60000 (2%)]".
std::optional<Progress> find_progress(std::string_view line);

}  // namespace nanhunt::autopsy
