// SPDX-License-Identifier: Apache-2.0
// Together in one file because they share one scan of an item, which takes longest to compile.
#include <initializer_list>

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stats_launches.h"

namespace nanhunt::kernels::cuda {
namespace {

// The last number: blocks that a multiprocessor shall hold, which bounds the registers of a thread.
const void* stats_function() { return reinterpret_cast<const void*>(&run_kernel<StatsKernel, kStatsThreads, 3>); }
const void* histogram_function() {
  return reinterpret_cast<const void*>(&run_kernel<HistogramKernel, kStatsThreads, 2>);
}
const void* checksum_stats_function() { return reinterpret_cast<const void*>(&run_kernel<ChecksumStatsKernel, kStatsThreads, 2>); }
const void* check_function() { return reinterpret_cast<const void*>(&run_kernel<ChecksumKernel, kChecksumThreads>); }

const void* finite_function() { return reinterpret_cast<const void*>(&run_kernel<FiniteKernel, kStatsThreads, 4>); }

cudaError_t load(std::initializer_list<const void*> functions) {
  cudaFuncAttributes loaded{};
  for (const void* function : functions) {
    if (const cudaError_t error = cudaFuncGetAttributes(&loaded, function); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t launch(const StatsKernel& kernel, std::uint32_t items, cudaStream_t stream) {
  return launch_kernel(stats_function(), items, kStatsThreads, kernel, stream);
}
cudaError_t launch(const HistogramKernel& kernel, std::uint32_t items, cudaStream_t stream) {
  return launch_kernel(histogram_function(), items, kStatsThreads, kernel, stream);
}
cudaError_t launch(const ChecksumStatsKernel& kernel, std::uint32_t items, cudaStream_t stream) {
  return launch_kernel(checksum_stats_function(), items, kStatsThreads, kernel, stream);
}
cudaError_t launch(const ChecksumKernel& kernel, cudaStream_t stream) {
  const std::uint32_t blocks = checksum_blocks(kernel.walk.view.count * kernel.walk.view.size);
  return launch_kernel(check_function(), blocks, kChecksumThreads, kernel, stream);
}
cudaError_t launch(const FiniteKernel& kernel, std::uint32_t items, cudaStream_t stream) {
  return launch_kernel(finite_function(), items, kStatsThreads, kernel, stream);
}

cudaError_t load_stats() { return load({stats_function()}); }
cudaError_t load_histograms() { return load({histogram_function()}); }
cudaError_t load_checks() { return load({checksum_stats_function(), check_function()}); }
cudaError_t load_finite() { return load({finite_function()}); }

}  // namespace nanhunt::kernels::cuda
