// SPDX-License-Identifier: Apache-2.0
// Whether a path is a recorded run or a checkpoint, and a checkpoint's progress on a terminal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace nanhunt::cli {

// Newest first. Empty: a run, or nothing that is known; what is a run stays one.
std::vector<std::string> checkpoints_at(const std::string& path);

// Shows bytes that were read once that takes longer than two seconds.
std::function<void(std::uint64_t, std::uint64_t)> checkpoint_progress(const std::string& path);

}  // namespace nanhunt::cli
