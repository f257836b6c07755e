// SPDX-License-Identifier: Apache-2.0
// The one way a kernel is launched. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nanhunt::kernels::cuda {

// `function` takes `kernel` by value. Gives the launch's own status: the thread's last error, which <<<>>> leaves it
// in, may be one that the run has not asked for yet.
template <class Kernel>
cudaError_t launch_kernel(const void* function, std::uint32_t blocks, std::uint32_t threads, const Kernel& kernel,
                          cudaStream_t stream) {
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  return cudaLaunchKernel(function, dim3(blocks), dim3(threads), arguments, 0, stream);
}

}  // namespace nanhunt::kernels::cuda
