// SPDX-License-Identifier: Apache-2.0
// Checks of tensors (checksum_kernel.h) as launches. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/cuda/checksum_kernel.h"

namespace nanhunt::kernels::cuda {

// One launch: up to kChecksInParameters tensors without gaps, or one view.
cudaError_t launch_checks(std::span<const CheckedTensor> tensors, const ChecksumMemory& memory, cudaStream_t stream);
// Kernels are loaded when they are first used, which may wait for the device: this does it before.
cudaError_t load_checks();

}  // namespace nanhunt::kernels::cuda
