// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_recorder.h"

namespace nanhunt::kernels {

Result<std::unique_ptr<DeviceRecorder>> DeviceRecorder::create(const DeviceRecorderOptions&, Sink) {
  return Status(StatusCode::kUnsupported,
                "this build has no CUDA backend (NANHUNT_CUDA=OFF, or no CUDA compiler was found)");
}

}  // namespace nanhunt::kernels
