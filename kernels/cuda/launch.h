// SPDX-License-Identifier: Apache-2.0
// The one way a kernel is launched. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/launch_parameters.h"

namespace nanhunt::kernels::cuda {

// `function` takes `kernel` by value. Gives the launch's own status: the thread's last error, which <<<>>> leaves it
// in, may be one that the run has not asked for yet.
template <class Kernel>
cudaError_t launch_kernel(const void* function, std::uint32_t blocks, std::uint32_t threads, const Kernel& kernel,
                          cudaStream_t stream) {
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  return cudaLaunchKernel(function, dim3(blocks), dim3(threads), arguments, 0, stream);
}

// Of the driver there is.
inline std::size_t parameter_bytes_here() {
  static const std::size_t bytes = [] {
    int version = 0;
    return parameter_bytes(cudaDriverGetVersion(&version) == cudaSuccess ? version : 0);
  }();
  return bytes;
}

}  // namespace nanhunt::kernels::cuda
