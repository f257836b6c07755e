// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_stats.h"

namespace nanhunt::kernels {

Result<std::unique_ptr<DeviceStats>> DeviceStats::create(const DeviceStatsOptions&) {
  return Status(StatusCode::kUnsupported,
                "this build has no CUDA backend (NANHUNT_CUDA=OFF, or no CUDA compiler was found)");
}

}  // namespace nanhunt::kernels
