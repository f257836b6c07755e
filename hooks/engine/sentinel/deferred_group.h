// SPDX-License-Identifier: Apache-2.0
// Tensors that are read together on a device, what is learnt of them later, and what a step is compared by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/device_readings.h"
#include "nanhunt/engine/tensor.h"
#include "nanhunt/tensor_stats.h"

namespace nanhunt::hooks {

// Borrowed, with an address where its device has it.
TensorView device_view(const engine::Tensor& tensor);

class DeferredGroup {
 public:
  // Tensors of numbers alone: what is no floating-point tensor is finite and has no norm. Returns its place.
  std::size_t add(const engine::Tensor& tensor);
  bool empty() const { return stats_.empty(); }
  std::size_t size() const { return stats_.size(); }

  // Reads their contents as they are now: those on the device in one launch, others at once.
  void ask(kernels::DeviceReadings& readings) noexcept;
  // True once there is nothing more to come.
  bool poll(kernels::DeviceReadings& readings) noexcept;
  bool wait(kernels::DeviceReadings& readings) noexcept;
  void give_up(kernels::DeviceReadings& readings) noexcept;

  bool done() const { return done_; }
  bool incomplete() const;                                                          // something of it was lost
  const std::optional<TensorStats>& operator[](std::size_t i) const { return stats_[i]; }  // empty: not known

 private:
  void take(kernels::ReadingsState state);

  std::vector<engine::Tensor> tensors_;  // until they were asked for
  std::vector<std::optional<TensorStats>> stats_, found_;
  std::vector<std::size_t> places_;      // of those on the device
  kernels::DeviceReadings::Ticket ticket_ = 0;
  bool requests_ = false, done_ = false;
};

// NaN where an element was NaN, infinite where one was infinite.
double norm_of(const TensorStats& stats);
// Equal for equal contents of equal shape on one device; other contents have another but for rare chances.
std::uint64_t fingerprint(const TensorStats& stats);

}  // namespace nanhunt::hooks
