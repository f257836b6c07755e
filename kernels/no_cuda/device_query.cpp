// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_query.h"

namespace nanhunt::kernels {

std::vector<DeviceInfo> query_devices(std::string& why_none) {
  why_none = "this build has no CUDA backend (NANHUNT_CUDA=OFF, or no CUDA compiler was found)";
  return {};
}

}  // namespace nanhunt::kernels
