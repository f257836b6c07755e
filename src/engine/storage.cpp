// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/tensor.h"
#include "src/engine/memory.h"

namespace nanhunt::engine {
namespace {

// 0 means "unknown" to observers, so the first allocation is 1.
std::atomic<std::uint64_t> next_generation{1};

}  // namespace

Storage::Storage(std::size_t bytes, Contents contents)
    : data_(take_memory(bytes)),
      bytes_(bytes),
      generation_(next_generation.fetch_add(1, std::memory_order_relaxed)) {
  if (contents == Contents::kZero) std::memset(data_, 0, bytes);
}

Storage::~Storage() {
  notify_storage_released(generation_);
  give_memory_back(data_, bytes_);
}

}  // namespace nanhunt::engine
