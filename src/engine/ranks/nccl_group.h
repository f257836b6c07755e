// SPDX-License-Identifier: Apache-2.0
// with_nccl() with functions that are given.
#pragma once

#include <memory>
#include <string>

#include "kernels/nccl.h"
#include "nanhunt/engine/ranks.h"

namespace nanhunt::engine {

// `nccl` nullptr: there are none on this rank, and `missing` says why. They must outlive the group.
std::shared_ptr<RankGroup> with_nccl(const kernels::NcclFunctions* nccl, const std::string& missing,
                                     std::shared_ptr<RankGroup> ranks, const Device& device, std::string& why);

}  // namespace nanhunt::engine
