// SPDX-License-Identifier: Apache-2.0
// Looks at tensors (look_kernel.h, checksum_kernel.h) as launches. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/portable/look_kernel.h"

namespace nanhunt::kernels::cuda {

// One launch each: up to kChecksInParameters tensors without gaps, or a view with gaps.
cudaError_t launch_look(const LookCall& call, std::uint32_t items, cudaStream_t stream);
cudaError_t launch_check(const CheckedTensor& tensor, const ChecksumMemory& memory, cudaStream_t stream);
// Kernels are loaded when they are first used, which may wait for the device: this does it before.
cudaError_t load_checks();

}  // namespace nanhunt::kernels::cuda
