// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/tensor.h"
#include "src/engine/backend.h"
#include "src/engine/memory.h"

namespace nanhunt::engine {
namespace {

// 0 means "unknown" to observers, so the first allocation is 1.
std::atomic<std::uint64_t> next_generation{1};

}  // namespace

Storage::Storage(std::size_t bytes, Contents contents, const Device& device)
    : device_(device),
      data_(device.is_cpu() ? take_memory(bytes) : static_cast<std::byte*>(backend_of(device).allocate(bytes))),
      bytes_(bytes),
      generation_(next_generation.fetch_add(1, std::memory_order_relaxed)) {
  notify_storage_allocated(generation_, bytes);
  if (contents != Contents::kZero || bytes == 0) return;
  if (device.is_cpu()) {
    std::memset(data_, 0, bytes);
  } else {
    backend_of(device).set_zero(data_, bytes);
  }
}

Storage::~Storage() {
  notify_storage_released(generation_);
  if (device_.is_cpu()) {
    give_memory_back(data_, bytes_);
  } else {
    backend_of(device_).release(data_, bytes_);
  }
}

void Storage::read(std::byte* to) const {
  if (bytes_ == 0) return;
  if (device_.is_cpu()) {
    std::memcpy(to, data_, bytes_);
  } else {
    backend_of(device_).to_host(to, data_, bytes_);
  }
}

void Storage::write(const std::byte* from) {
  if (bytes_ == 0) return;
  if (device_.is_cpu()) {
    std::memcpy(data_, from, bytes_);
  } else {
    backend_of(device_).to_device(data_, from, bytes_);
  }
}

}  // namespace nanhunt::engine
