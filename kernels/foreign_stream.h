// SPDX-License-Identifier: Apache-2.0
// A stream that somebody else owns (a framework's), for readings of what was queued on it. Contract: kernels/CONTRACTS.md,
// readings of the device.
#pragma once

#include <memory>
#include <string>

#include "kernels/device_readings.h"

namespace nanhunt::kernels {

class ForeignStream {
 public:
  // Null where nothing can be read there, and `why` says why in one line: no CUDA in this build, no driver, no such
  // device. Asks only whether there is such a device; launches and allocates nothing.
  static std::unique_ptr<ForeignStream> open(int device, DeviceStream stream, std::string& why) noexcept;
  virtual ~ForeignStream() = default;

  // What is launched now would become part of a graph that somebody captures.
  virtual bool is_capturing() = 0;
  // Addresses that its launches are given lie in memory which that device can read: nobody is asked. Allocates, and may
  // wait for the device. Null: `why` says why; else all of it must be gone before the stream is.
  virtual std::unique_ptr<ReadingsPort> open_readings(const ReadingsOptions& options, std::string& why) = 0;
};

}  // namespace nanhunt::kernels
