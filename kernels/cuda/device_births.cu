// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device_births.h"

#include "kernels/cuda/device_lanes.h"

namespace nanhunt::kernels::cuda {

void launch_births(const BirthKernel& kernel, cudaStream_t stream) { launch_each(kernel, stream); }

}  // namespace nanhunt::kernels::cuda
