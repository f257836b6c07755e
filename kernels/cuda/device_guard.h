// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as Status, and the current device put back. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "nanhunt/status.h"

namespace nanhunt::kernels::cuda {

// What failed is said here and not left for somebody else's next check.
inline Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  static_cast<void>(cudaGetLastError());
  return {StatusCode::kUnsupported, std::string("[cuda] ") + what + ": " + cudaGetErrorString(error)};
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return;
    }
    changed_ = before_ != device && cudaSetDevice(device) == cudaSuccess;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace nanhunt::kernels::cuda
