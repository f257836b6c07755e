// SPDX-License-Identifier: Apache-2.0
// A trace as the rules of other tools would read it: ops in order, and whether what went in and came out was finite.
#pragma once

#include <string>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::campaign {

struct SeenOp {
  std::uint32_t step = 0;
  Phase phase = Phase::kForward;
  std::string module, op;
  bool bad_in = false, bad_out = false, nan_out = false;
};
Result<std::vector<SeenOp>> read_ops(const std::string& run_dir);

}  // namespace nanhunt::campaign
