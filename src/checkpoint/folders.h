// SPDX-License-Identifier: Apache-2.0
// Which checkpoints a path holds: a file, a folder that is one checkpoint, or a series of them.
#pragma once

#include <string>
#include <vector>

#include "nanhunt/status.h"
#include "src/checkpoint/checkpoint.h"

namespace nanhunt::checkpoint {

// The checkpoints at `path`, newest first: by the number in each name ("checkpoint-200", "epoch=3-step=400.ckpt"), then
// by name. Empty: there is none. A folder whose files belong together is one.
std::vector<std::string> find_checkpoints(const std::string& path);

// One of them. Damage is in the result; fails where nothing can be read.
Result<Checkpoint> read_checkpoint(const std::string& path);

}  // namespace nanhunt::checkpoint
