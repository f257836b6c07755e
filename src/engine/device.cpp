// SPDX-License-Identifier: Apache-2.0
#include "nanhunt/engine/device.h"

#include <charconv>
#include <stdexcept>

#include "src/engine/backend.h"

namespace nanhunt::engine {
namespace {

kernels::DeviceBackend* emulated = nullptr;

kernels::DeviceBackend* find_backend(const Device& device, std::string& why) {
  switch (device.kind) {
    case DeviceKind::kCuda:
      return kernels::cuda_backend(device.index, why);
    case DeviceKind::kEmulated:
      if (emulated == nullptr) why = "the emulated device is for tests, and none is set up";
      return emulated;
    case DeviceKind::kCpu:
      break;
  }
  why = "the CPU is no device";
  return nullptr;
}

}  // namespace

std::string describe(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kCuda:
      return "cuda:" + std::to_string(device.index);
    case DeviceKind::kEmulated:
      return "emulated";
    case DeviceKind::kCpu:
      break;
  }
  return "cpu";
}

std::optional<Device> parse_device(std::string_view name) {
  if (name == "cpu") return Device{};
  if (name == "cuda") return Device{DeviceKind::kCuda, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  Device device{DeviceKind::kCuda, 0};
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kPrefix.size(), end, device.index);
  if (error != std::errc() || at != end || device.index < 0) return std::nullopt;
  return device;
}

std::string why_unusable(const Device& device) {
  if (device.is_cpu()) return {};
  std::string why;
  return find_backend(device, why) != nullptr ? std::string() : why;
}

std::string device_details(const Device& device) { return device.is_cpu() ? "cpu" : backend_of(device).name(); }

void wait_for(const Device& device) {
  if (!device.is_cpu()) backend_of(device).wait();
}

void set_product_math(const Device& device, const ProductMath& math) {
  if (!device.is_cpu()) {
    backend_of(device).set_product_math({.tf32 = math.tf32, .reduced_sums = math.reduced_sums});
  }
}

DeviceBytes device_bytes(const Device& device) {
  if (device.is_cpu()) return {};
  const kernels::DeviceMemory memory = backend_of(device).memory();
  return {memory.used, memory.cached};
}

kernels::DeviceBackend& backend_of(const Device& device) {
  std::string why;
  kernels::DeviceBackend* backend = find_backend(device, why);
  if (backend == nullptr) throw std::runtime_error(describe(device) + " cannot be used: " + why);
  return *backend;
}

void set_emulated_backend(kernels::DeviceBackend* backend) { emulated = backend; }

}  // namespace nanhunt::engine
