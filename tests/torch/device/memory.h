// SPDX-License-Identifier: Apache-2.0
// Memory behind a wall: whoever touches it while no kernel has it open dies of SIGSEGV, as the user of a GPU's memory
// would. Blocks are whole pages, filled with 0xff when they are handed out (NaN in every format), and handed out again
// at the same addresses after they were freed, as a caching allocator does.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace walled {

class Memory {
public:
  static Memory& get() {
    static auto* memory = new Memory;  // outlives every tensor
    return *memory;
  }

  // Null for no bytes.
  void* allocate(size_t bytes) {
    if (bytes == 0) {
      return nullptr;
    }
    const std::lock_guard lock(mutex_);
    const size_t size = (bytes + kPage - 1) / kPage * kPage;
    std::vector<void*>& free = free_[size];
    void* block;
    if (free.empty()) {
      block = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (block == MAP_FAILED) {
        throw std::bad_alloc();
      }
    } else {
      block = free.back();
      free.pop_back();
    }
    blocks_[block] = Block{size, 0};
    in_use_ += static_cast<int64_t>(size);
    mprotect(block, size, PROT_READ | PROT_WRITE);
    std::memset(block, 0xff, bytes);
    mprotect(block, size, PROT_NONE);
    return block;
  }

  void release(void* block) {
    if (block == nullptr) {
      return;
    }
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    free_[found->second.size].push_back(block);
    in_use_ -= static_cast<int64_t>(found->second.size);
    blocks_.erase(found);
  }

  // As often as a block was opened it must be closed; kernels of two threads may have it open at once.
  void open(void* block) { turn(block, +1); }
  void close(void* block) { turn(block, -1); }

  // The block that has this address.
  void* block_of(const void* address) {
    const std::lock_guard lock(mutex_);
    for (const auto& [block, found] : blocks_) {
      const auto* begin = static_cast<const char*>(block);
      if (begin <= address && address < begin + found.size) {
        return block;
      }
    }
    throw std::out_of_range("no memory of the device");
  }

  int64_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }

private:
  static constexpr size_t kPage = 4096;

  struct Block {
    size_t size;
    int users;
  };

  void turn(void* block, int by) {
    if (block == nullptr) {
      return;
    }
    const std::lock_guard lock(mutex_);
    Block& found = blocks_.at(block);
    const bool was_open = found.users > 0;
    found.users += by;
    if (was_open != (found.users > 0)) {
      mprotect(block, found.size, was_open ? PROT_NONE : PROT_READ | PROT_WRITE);
    }
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::map<size_t, std::vector<void*>> free_;
  int64_t in_use_ = 0;
};

}  // namespace walled
