// SPDX-License-Identifier: Apache-2.0
// Where the contents of a tensor lie. A device is an attribute of a storage; ops run where their operands are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nanhunt::engine {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kEmulated };  // kEmulated: a device's code run by the CPU, in tests

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  bool is_cpu() const { return kind == DeviceKind::kCpu; }
  bool operator==(const Device&) const = default;
};

std::string describe(const Device& device);                // "cpu", "cuda:0"
std::optional<Device> parse_device(std::string_view name);  // "cpu", "cuda", "cuda:1"
// Why this device cannot be used here, and what to do; empty when it can. The first call for a GPU makes its context.
std::string why_unusable(const Device& device);
std::string device_details(const Device& device);  // for people: model and driver; "cpu" for the CPU
// Waits until everything asked of the device is done. Nothing for the CPU.
void wait_for(const Device& device);

struct DeviceBytes {
  std::uint64_t used = 0, cached = 0;  // in tensors; kept to be used again
};
DeviceBytes device_bytes(const Device& device);  // zero for the CPU

}  // namespace nanhunt::engine
