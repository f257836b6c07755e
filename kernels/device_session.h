// SPDX-License-Identifier: Apache-2.0
// A GPU as tests, checks and benchmarks use it: memory, copies, times, graphs, on one stream. Not for watching a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/device_stats.h"
#include "nanhunt/status.h"

namespace nanhunt::kernels {

class DeviceSession {
 public:
  // Fails with the reason where there is no device, no driver or no CUDA in this build.
  static Result<std::unique_ptr<DeviceSession>> open(int device);
  virtual ~DeviceSession() = default;

  virtual DeviceStream stream() const = 0;
  // Freed with the session, or before by release(). nullptr: there is not as much memory.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual std::size_t free_memory() const = 0;

  // In the order of the stream; copies to the host wait for it.
  virtual Status copy_in(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status copy_out(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual Status fill(void* to, int byte, std::size_t bytes) = 0;
  virtual Status wait() = 0;

  // Milliseconds on the device between two events around `work`, which enqueues; waits for it.
  virtual Result<double> time(const std::function<Status()>& work) = 0;
};

}  // namespace nanhunt::kernels
