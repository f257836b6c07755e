// SPDX-License-Identifier: Apache-2.0
// Births (origin_kernel.h) as a launch. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/portable/origin_kernel.h"

namespace nanhunt::kernels::cuda {

cudaError_t launch_origins(const OriginKernel& kernel, cudaStream_t stream);
// Kernels are loaded when they are first used, which may wait for the device: this does it before.
cudaError_t load_origins();

}  // namespace nanhunt::kernels::cuda
