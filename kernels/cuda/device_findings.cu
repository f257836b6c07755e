// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_findings.h"

#include <cstddef>

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/device_births.h"
#include "kernels/cuda/device_lanes.h"
#include "kernels/cuda/launch.h"

namespace nanhunt::kernels::cuda {

namespace {
const void* findings_function() {
  return reinterpret_cast<const void*>(&run_kernel<FindingsKernel, FindingsKernel::kThreads>);
}
const void* updates_function() {
  return reinterpret_cast<const void*>(&run_kernel<LostUpdatesKernel, LostUpdatesKernel::kThreads>);
}
const void* births_function() { return reinterpret_cast<const void*>(&run_each<BirthKernel>); }
}  // namespace

// As kNoFindings has it.
cudaError_t open_findings(FindingsSoFar*& memory, cudaStream_t stream) {
  cudaFuncAttributes loaded{};
  cudaError_t error = cudaFuncGetAttributes(&loaded, findings_function());
  void* got = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&got, sizeof(FindingsSoFar));
  memory = static_cast<FindingsSoFar*>(got);
  if (error == cudaSuccess) error = cudaMemsetAsync(got, 0, sizeof(FindingsSoFar), stream);
  return error == cudaSuccess ? cudaMemsetAsync(got, 0xff, offsetof(FindingsSoFar, flushed), stream) : error;
}

cudaError_t launch_findings(const FindingsKernel& kernel, cudaStream_t stream) {
  return launch_kernel(findings_function(), kernel.blocks(), FindingsKernel::kThreads, kernel, stream);
}

cudaError_t open_updates(LostUpdatesKernel::Memory*& memory, cudaStream_t stream) {
  cudaFuncAttributes loaded{};
  cudaError_t error = cudaFuncGetAttributes(&loaded, updates_function());
  void* got = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&got, sizeof(LostUpdatesKernel::Memory));
  memory = static_cast<LostUpdatesKernel::Memory*>(got);
  return error == cudaSuccess ? cudaMemsetAsync(got, 0, sizeof(LostUpdatesKernel::Memory), stream) : error;
}

cudaError_t launch_updates(const LostUpdatesKernel& kernel, cudaStream_t stream) {
  return launch_kernel(updates_function(), kernel.blocks(), LostUpdatesKernel::kThreads, kernel, stream);
}

cudaError_t launch_births(const BirthKernel& kernel, cudaStream_t stream) {
  return launch_kernel(births_function(), 1, 1, kernel, stream);
}

cudaError_t load_births() {
  cudaFuncAttributes loaded{};
  return cudaFuncGetAttributes(&loaded, births_function());
}

}  // namespace nanhunt::kernels::cuda
