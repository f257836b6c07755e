// SPDX-License-Identifier: Apache-2.0
// One file of kernels for each level, so that they are compiled side by side.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/portable/tensor_stats_kernel.h"

namespace nanhunt::kernels::cuda {

// A block for each item. Starts the launch and nothing else.
template <StatsLevel kLevel, class Table>
cudaError_t launch_stats(const StatsMemory& memory, const Table& table, std::uint32_t items, cudaStream_t stream);
// Kernels are loaded when they are first used, which takes memory and may wait for the device: this does it before.
template <StatsLevel kLevel, class Table>
cudaError_t load_stats();

#define NANHUNT_DECLARE_STATS(level, Table)                                                              \
  template <>                                                                                            \
  cudaError_t launch_stats<level, Table>(const StatsMemory&, const Table&, std::uint32_t, cudaStream_t); \
  template <>                                                                                            \
  cudaError_t load_stats<level, Table>();

NANHUNT_DECLARE_STATS(StatsLevel::kSums, ViewOrRows)
NANHUNT_DECLARE_STATS(StatsLevel::kSums, FewRows)
NANHUNT_DECLARE_STATS(StatsLevel::kSums, ParameterTable)
NANHUNT_DECLARE_STATS(StatsLevel::kHistogram, FewViews)

}  // namespace nanhunt::kernels::cuda
