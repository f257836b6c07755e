// SPDX-License-Identifier: Apache-2.0
// Tensors that are read together: on a device by one launch and known later, on the host at once.
#pragma once

#include <cstddef>
#include <utility>
#include <optional>
#include <vector>

#include "hooks/engine/reading.h"
#include "kernels/device_readings.h"

namespace nanhunt::hooks {

// Borrowed, with an address where its device has it.
TensorView device_view(const engine::Tensor& tensor);

class ReadGroup {
 public:
  // What is no floating-point tensor is finite and has no norm.
  void add(const engine::Tensor& tensor, Wanted wanted);
  bool empty() const { return readings_.empty(); }
  std::size_t size() const { return readings_.size(); }

  // Reads contents as they are now. `device` is borrowed until all is there, or given up; nullptr: the host reads.
  void ask(kernels::DeviceReadings* device) noexcept;
  // True once there is nothing more to come.
  bool poll() noexcept;
  bool wait() noexcept;
  void give_up() noexcept;

  bool incomplete() const;                                                     // something of it was lost
  const Reading& operator[](std::size_t i) const { return readings_[i]; }      // as far as it is known

 private:
  void take(kernels::ReadingsState state);

  std::vector<std::pair<engine::Tensor, Wanted>> tensors_;  // until they were asked for
  std::vector<Reading> readings_;
  std::vector<std::optional<TensorStats>> found_;
  std::vector<std::size_t> places_;  // of those on the device
  kernels::DeviceReadings* device_ = nullptr;  // while something is under way
  kernels::DeviceReadings::Ticket ticket_ = 0;
};

}  // namespace nanhunt::hooks
