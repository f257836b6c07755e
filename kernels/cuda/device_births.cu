// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_births.h"

#include "kernels/cuda/device_lanes.h"

namespace nanhunt::kernels::cuda {

namespace {
const void* births_function() { return reinterpret_cast<const void*>(&run_each<BirthKernel>); }
}  // namespace

cudaError_t launch_births(const BirthKernel& kernel, cudaStream_t stream) {
  return launch_kernel(births_function(), 1, 1, kernel, stream);
}

cudaError_t load_births() {
  cudaFuncAttributes loaded{};
  return cudaFuncGetAttributes(&loaded, births_function());
}

}  // namespace nanhunt::kernels::cuda
