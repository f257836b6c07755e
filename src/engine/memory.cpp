// SPDX-License-Identifier: Apache-2.0
#include "src/engine/memory.h"

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size)
#define ASAN_UNPOISON_MEMORY_REGION(address, size)
#endif

namespace nanhunt::engine {
namespace {

// Past any real tensor: a size like this is a mistake, and said so before the allocator is asked.
constexpr std::size_t kMaxBytes = std::size_t{1} << 40;

// Blocks come in 4 sizes per power of two, so that at most a fifth of one is unused.
struct SizeClass {
  std::size_t index;
  std::size_t bytes;
};
constexpr std::size_t kClasses = 4 * 41;

SizeClass size_class(std::size_t bytes) {
  const std::size_t units = bytes <= 4 * kMemoryAlignment ? 4 : (bytes + kMemoryAlignment - 1) / kMemoryAlignment;
  const auto power = static_cast<std::size_t>(std::bit_width(units - 1)) - 1;  // units - 1 in [2^power, 2^(power+1))
  const std::size_t step = power < 2 ? 1 : std::size_t{1} << (power - 2);
  const std::size_t rounded = (units + step - 1) / step * step;
  const std::size_t quarter = (rounded - 1) / step % 4;
  return {power * 4 + quarter, rounded * kMemoryAlignment};
}

struct Kept {
  std::mutex mutex;
  std::array<std::vector<std::byte*>, kClasses> blocks;
  std::size_t bytes = 0;
};

// Never destroyed: storages may outlive every other static object.
Kept& kept() {
  static Kept& instance = *new Kept;
  return instance;
}

}  // namespace

std::byte* take_memory(std::size_t bytes) {
  if (bytes > kMaxBytes) {
    throw std::invalid_argument("[storage] expected at most 2^40 bytes, got " + std::to_string(bytes));
  }
  const SizeClass wanted = size_class(bytes);
  {
    Kept& pool = kept();
    const std::lock_guard lock(pool.mutex);
    std::vector<std::byte*>& blocks = pool.blocks[wanted.index];
    if (!blocks.empty()) {
      std::byte* block = blocks.back();
      blocks.pop_back();
      pool.bytes -= wanted.bytes;
      ASAN_UNPOISON_MEMORY_REGION(block, bytes);
      return block;
    }
  }
  void* memory = std::aligned_alloc(kMemoryAlignment, wanted.bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

void give_memory_back(std::byte* memory, std::size_t bytes) noexcept {
  const SizeClass size = size_class(bytes);
  try {
    Kept& pool = kept();
    const std::lock_guard lock(pool.mutex);
    if (pool.bytes + size.bytes <= kMaxKeptBytes) {
      pool.blocks[size.index].push_back(memory);
      pool.bytes += size.bytes;
      ASAN_POISON_MEMORY_REGION(memory, size.bytes);
      return;
    }
  } catch (const std::exception&) {  // no room for the list itself
  }
  std::free(memory);
}

ScratchUse& scratch_use() {
  thread_local ScratchUse use;
  return use;
}

std::size_t kept_memory() {
  const std::lock_guard lock(kept().mutex);
  return kept().bytes;
}

}  // namespace nanhunt::engine
