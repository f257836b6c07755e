// SPDX-License-Identifier: Apache-2.0
// A folder that torch.distributed.checkpoint wrote: `.metadata`, and files of which each part is a tensor that
// torch.save wrote, or a value.
#pragma once

#include <string>

#include "nanhunt/status.h"
#include "src/checkpoint/checkpoint.h"

namespace nanhunt::checkpoint {

Status read_distributed(const std::string& folder, const std::string& prefix, Checkpoint& out);

}  // namespace nanhunt::checkpoint
