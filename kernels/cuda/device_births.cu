// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_births.h"

#include "kernels/cuda/device_lanes.h"

namespace nanhunt::kernels::cuda {

namespace {
const void* births_function() { return reinterpret_cast<const void*>(&run_each<BirthKernel>); }
}  // namespace

// Not launch_each(): it asks for the thread's last error, which may be the run's.
cudaError_t launch_births(const BirthKernel& kernel, cudaStream_t stream) {
  void* arguments[] = {const_cast<BirthKernel*>(&kernel)};
  return cudaLaunchKernel(births_function(), dim3(1), dim3(1), arguments, 0, stream);
}

cudaError_t load_births() {
  cudaFuncAttributes loaded{};
  return cudaFuncGetAttributes(&loaded, births_function());
}

}  // namespace nanhunt::kernels::cuda
