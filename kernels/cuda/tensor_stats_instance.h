// SPDX-License-Identifier: Apache-2.0
// The kernels of one level. For .cu files.
#pragma once

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_stats_launch.h"

namespace nanhunt::kernels::cuda {

// Blocks that a multiprocessor shall hold: bounds the registers of a thread.
constexpr int blocks_wanted(StatsLevel level) {
  return level == StatsLevel::kSums ? 3 : 2;
}

template <StatsLevel kLevel, class Table>
const void* stats_function() {
  return reinterpret_cast<const void*>(
      &run_kernel<TensorStatsKernel<kLevel, Table>, kStatsThreads, blocks_wanted(kLevel)>);
}

template <StatsLevel kLevel, class Table>
cudaError_t launch_table(const StatsMemory& memory, const Table& table, std::uint32_t blocks, cudaStream_t stream) {
  const TensorStatsKernel<kLevel, Table> kernel{memory, table};
  return launch_kernel(stats_function<kLevel, Table>(), blocks, kStatsThreads, kernel, stream);
}

#define NANHUNT_DEFINE_STATS(level, Table)                                                                    \
  template <>                                                                                                 \
  cudaError_t load_stats<level, Table>() {                                                                    \
    cudaFuncAttributes loaded{};                                                                              \
    return cudaFuncGetAttributes(&loaded, stats_function<level, Table>());                                    \
  }                                                                                                           \
  template <>                                                                                                 \
  cudaError_t launch_stats<level, Table>(const StatsMemory& memory, const Table& table, std::uint32_t items,  \
                                         cudaStream_t stream) {                                               \
    return launch_table<level>(memory, table, items, stream);                                                 \
  }

}  // namespace nanhunt::kernels::cuda
