// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are. kernels/cuda asks the driver; kernels/no_cuda says that this build cannot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nanhunt::kernels {

struct DeviceInfo {
  int index = 0;
  std::string name;
  int compute_major = 0, compute_minor = 0;
  std::uint64_t memory_bytes = 0;
  int multiprocessors = 0;
  int driver_version = 0;   // as CUDA counts: 13000 is 13.0
  int runtime_version = 0;  // of the toolkit this build was linked with
};

// Empty where there is none; `why_none` then says why in one line (no driver, no device, built without CUDA).
// Never throws for a missing driver, and creates no context on any device.
std::vector<DeviceInfo> query_devices(std::string& why_none);

}  // namespace nanhunt::kernels
