// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_findings.h"

#include "kernels/cuda/device_block.h"
#include "kernels/cuda/device_lanes.h"
#include "kernels/cuda/finding_kernels.h"
#include "kernels/cuda/update_kernels.h"

namespace nanhunt::kernels::cuda {

void launch_findings(const FindingsCall& call, const DeviceStatsRecord* output, DeviceFindings* found,
                     cudaStream_t stream) {
  launch_each(FindingsBegin{found}, stream);
  launch_each(FindingsScan{call, output, found}, stream);
  launch_each(FindingsEnd{call, found}, stream);
}

namespace {
const void* updates_function() {
  return reinterpret_cast<const void*>(&run_kernel<LostUpdatesKernel, LostUpdatesKernel::kThreads>);
}
}  // namespace

cudaError_t open_updates(LostUpdatesKernel::Memory*& memory, cudaStream_t stream) {
  cudaFuncAttributes loaded{};
  cudaError_t error = cudaFuncGetAttributes(&loaded, updates_function());
  void* got = nullptr;
  if (error == cudaSuccess) error = cudaMalloc(&got, sizeof(LostUpdatesKernel::Memory));
  memory = static_cast<LostUpdatesKernel::Memory*>(got);
  return error == cudaSuccess ? cudaMemsetAsync(got, 0, sizeof(LostUpdatesKernel::Memory), stream) : error;
}

cudaError_t launch_updates(const LostUpdatesKernel& kernel, cudaStream_t stream) {
  void* arguments[] = {const_cast<LostUpdatesKernel*>(&kernel)};
  return cudaLaunchKernel(updates_function(), dim3(kernel.blocks()), dim3(LostUpdatesKernel::kThreads), arguments, 0,
                          stream);
}

}  // namespace nanhunt::kernels::cuda
