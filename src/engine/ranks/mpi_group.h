// SPDX-License-Identifier: Apache-2.0
// What libnanhunt_mpi.so offers to whoever loads it.
#pragma once

#include "nanhunt/engine/ranks.h"

// This process as a rank of those that mpirun has started; throws RankLost, in any call, when another has not answered
// for so long. The caller owns it. Once in a process.
extern "C" __attribute__((visibility("default"))) nanhunt::engine::RankGroup* nanhunt_open_mpi_ranks(unsigned patience_s);
