// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "nanhunt/engine/hooks.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::engine {
namespace {

constexpr std::size_t kAlignment = 64;
// Past any real tensor: a size like this is a mistake, and said so before the allocator is asked.
constexpr std::size_t kMaxBytes = std::size_t{1} << 40;

// 0 means "unknown" to observers, so the first allocation is 1.
std::atomic<std::uint64_t> next_generation{1};

std::byte* allocate_zeroed(std::size_t bytes) {
  if (bytes > kMaxBytes) {
    throw std::invalid_argument("[storage] expected at most 2^40 bytes, got " + std::to_string(bytes));
  }
  // Never a null pointer, so that an empty tensor needs no special case.
  const std::size_t rounded = bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Storage::Storage(std::size_t bytes)
    : data_(allocate_zeroed(bytes)),
      bytes_(bytes),
      generation_(next_generation.fetch_add(1, std::memory_order_relaxed)) {}

Storage::~Storage() {
  notify_storage_released(generation_);
  std::free(data_);
}

}  // namespace nanhunt::engine
