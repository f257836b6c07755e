// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_query.h"

#include <cuda_runtime_api.h>

namespace nanhunt::kernels {
namespace {

// An attribute that the driver does not know is 0: a listing is no reason to fail.
int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // not sticky, but must not show up in somebody's next check
    return 0;
  }
  return value;
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

std::vector<DeviceInfo> query_devices(std::string& why_none) {
  why_none.clear();
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    why_none = driver == 0             ? "no CUDA driver is installed"
               : status == cudaSuccess ? "the CUDA driver reports no device"
                                       : cudaGetErrorString(status);
    if (status == cudaErrorInsufficientDriver && driver != 0) {
      why_none = "the CUDA driver is too old: it is for CUDA " + version_text(driver) + ", this build needs " +
                 version_text(CUDART_VERSION / 1000 * 1000) + " or newer; update the driver";
    }
    return {};
  }
  int driver_version = 0;
  int runtime_version = 0;
  static_cast<void>(cudaDriverGetVersion(&driver_version));
  static_cast<void>(cudaRuntimeGetVersion(&runtime_version));

  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      continue;
    }
    DeviceInfo device;
    device.index = i;
    device.name = properties.name;
    device.compute_major = attribute(cudaDevAttrComputeCapabilityMajor, i);
    device.compute_minor = attribute(cudaDevAttrComputeCapabilityMinor, i);
    device.memory_bytes = properties.totalGlobalMem;
    device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, i);
    device.driver_version = driver_version;
    device.runtime_version = runtime_version;
    devices.push_back(device);
  }
  if (devices.empty()) why_none = "the CUDA driver lists devices, but none answers";
  return devices;
}

}  // namespace nanhunt::kernels
