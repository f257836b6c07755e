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

// What products on a GPU may do beyond fp32 sums of what is stored; off unless asked for, and part of device_details().
struct ProductMath {
  bool tf32 = false;          // inputs of fp32 products lose 13 bits of their 23
  bool reduced_sums = false;  // 16-bit products may be added up in 16 bits where a product is split
};
void set_product_math(const Device& device, const ProductMath& math);  // of the products from here on; no CPU has them

struct DeviceBytes {
  std::uint64_t used = 0, cached = 0;  // in tensors; kept to be used again
};
DeviceBytes device_bytes(const Device& device);  // zero for the CPU

}  // namespace nanhunt::engine
