// SPDX-License-Identifier: Apache-2.0
// Memory of storages and of scratch buffers. Blocks that were given back are kept and used again: fresh pages from the
// kernel cost more than most ops that fill them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nanhunt::engine {

inline constexpr std::size_t kMemoryAlignment = 64;
inline constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;  // given back and not taken again, all threads

// Undefined contents, never null. Throws std::invalid_argument above 2^40 bytes, std::bad_alloc when there is no more.
std::byte* take_memory(std::size_t bytes);
void give_memory_back(std::byte* memory, std::size_t bytes) noexcept;  // `bytes` as they were asked for
std::size_t kept_memory();                                             // bytes waiting to be used again

// Of this thread's scratch buffers: bytes in use, and the most that were since the last reset.
struct ScratchUse {
  std::size_t now = 0, most = 0;
};
ScratchUse& scratch_use();

// Room for values inside one op.
template <typename T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * sizeof(T)), data_(reinterpret_cast<T*>(take_memory(bytes_))) {
    ScratchUse& use = scratch_use();
    use.now += bytes_;
    if (use.now > use.most) use.most = use.now;
  }
  ~Scratch() {
    scratch_use().now -= bytes_;
    give_memory_back(reinterpret_cast<std::byte*>(data_), bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

}  // namespace nanhunt::engine
