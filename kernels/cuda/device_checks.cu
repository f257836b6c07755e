// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_checks.h"

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/launch.h"

namespace nanhunt::kernels::cuda {
namespace {

// Two blocks to a multiprocessor and no more: the scan's registers and the checksum's are held at once.
const void* look_function() { return reinterpret_cast<const void*>(&run_kernel<LookKernel, kStatsThreads, 2>); }
const void* check_function() { return reinterpret_cast<const void*>(&run_kernel<ChecksumKernel, kChecksumThreads>); }

}  // namespace

cudaError_t load_checks() {
  cudaFuncAttributes loaded{};
  for (const void* function : {look_function(), check_function()}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&loaded, function); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_look(const LookCall& call, std::uint32_t items, cudaStream_t stream) {
  return launch_kernel(look_function(), items, kStatsThreads, LookKernel{call}, stream);
}

cudaError_t launch_check(const CheckedTensor& tensor, const ChecksumMemory& memory, cudaStream_t stream) {
  const ChecksumKernel kernel{memory, {tensor.view, tensor.reference}};
  const std::uint32_t blocks = checksum_blocks(tensor.view.count * tensor.view.size);
  return launch_kernel(check_function(), blocks, kChecksumThreads, kernel, stream);
}

}  // namespace nanhunt::kernels::cuda
