// SPDX-License-Identifier: Apache-2.0
// Findings of an op (finding_kernels.h) as launches. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/update_kernels.h"
#include "kernels/device_findings.h"

namespace nanhunt::kernels::cuda {

// Throws std::runtime_error where a launch fails.
void launch_findings(const FindingsCall& call, const DeviceStatsRecord* output, DeviceFindings* found,
                     cudaStream_t stream);

// What launches of updates on one stream share, and their kernel: loaded here, for its first use may wait for the
// device. The memory is ready for what comes later in that stream.
cudaError_t open_updates(LostUpdatesKernel::Memory*& memory, cudaStream_t stream);
cudaError_t launch_updates(const LostUpdatesKernel& kernel, cudaStream_t stream);

}  // namespace nanhunt::kernels::cuda
