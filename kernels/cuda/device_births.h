// SPDX-License-Identifier: Apache-2.0
// Births (birth_kernel.h) as a launch. For .cu files.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/birth_kernel.h"

namespace nanhunt::kernels::cuda {

// Throws std::runtime_error where the launch fails.
void launch_births(const BirthKernel& kernel, cudaStream_t stream);

}  // namespace nanhunt::kernels::cuda
