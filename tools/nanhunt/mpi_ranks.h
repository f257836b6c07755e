// SPDX-License-Identifier: Apache-2.0
// `train --ranks N`: N processes started by mpirun, each of which is this program again.
#pragma once

#include <cstdint>
#include <memory>

#include "nanhunt/engine/device.h"
#include "nanhunt/engine/ranks.h"
#include "nanhunt/status.h"

namespace nanhunt::cli {

// Whether this process is one that mpirun has started.
bool started_by_mpirun();
// Its own GPU, as far as this machine has one for each of its processes; else the first.
engine::Device device_of_rank();
// Runs this command line again as `ranks` processes, and says what ended them if it was not their work.
// The exit status: theirs.
Result<int> run_under_mpirun(std::uint32_t ranks);
// This process as one of them.
Result<std::shared_ptr<engine::RankGroup>> open_mpi_ranks(std::uint32_t ranks);

// The ranks of that group, whose gradients on a device go by NCCL where that can be had; says which way they go.
std::shared_ptr<engine::RankGroup> with_devices(const std::shared_ptr<engine::RankGroup>& group,
                                                const engine::Device& device);

}  // namespace nanhunt::cli
