// SPDX-License-Identifier: Apache-2.0
// Findings of an op (evidence_kernels.h) as launches. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/portable/evidence_kernels.h"
#include "kernels/portable/update_kernels.h"

namespace nanhunt::kernels::cuda {

// What launches on one stream share, and their kernels: loaded here, for their first use may wait for the device. The
// memory is ready for what comes later in that stream.
cudaError_t open_evidence(EvidenceSoFar*& memory, cudaStream_t stream);
cudaError_t launch_evidence(const EvidenceKernel& kernel, cudaStream_t stream);
cudaError_t open_updates(LostUpdatesKernel::Memory*& memory, cudaStream_t stream);
cudaError_t launch_updates(const LostUpdatesKernel& kernel, cudaStream_t stream);

}  // namespace nanhunt::kernels::cuda
