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

cudaError_t launch_updates(const UpdatesCall& call, DeviceUpdates* found, cudaStream_t stream) {
  LostUpdatesKernel kernel{call, found};
  void* arguments[] = {&kernel};
  const auto* function = reinterpret_cast<const void*>(&run_kernel<LostUpdatesKernel, LostUpdatesKernel::kThreads>);
  return cudaLaunchKernel(function, dim3(1), dim3(LostUpdatesKernel::kThreads), arguments, 0, stream);
}

}  // namespace nanhunt::kernels::cuda
