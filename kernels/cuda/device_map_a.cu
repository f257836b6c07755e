// SPDX-License-Identifier: Apache-2.0
#include "kernels/portable/dense_map.h"
#include "kernels/cuda/device_lanes.h"
#include "kernels/cuda/device_launches.h"

namespace nanhunt::kernels::cuda {

bool launch_map_a(const MapCall& call, cudaStream_t stream) {
  const auto launch = [stream](const auto& kernel) { launch_each(kernel, stream); };
  return launch_formula(call, launch, FormulasA{}, std::integral_constant<int, 0>{});
}

}  // namespace nanhunt::kernels::cuda
