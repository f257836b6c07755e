// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_ops.h"

namespace nanhunt::kernels {

DeviceBackend* cuda_backend(int /*index*/, std::string& why) {
  why =
      "this build has no CUDA backend. Build with NANHUNT_CUDA=ON where a CUDA compiler (nvcc) is installed, or use "
      "--device cpu";
  return nullptr;
}

}  // namespace nanhunt::kernels
