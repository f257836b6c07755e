// SPDX-License-Identifier: Apache-2.0
// Memory of a device, cached: what was given back is handed out again in the order of its stream without asking the
// device or waiting for it. Knows nothing of CUDA: what really gives memory is a Source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace nanhunt::kernels {

class DeviceAllocator {
 public:
  using Stream = std::uint64_t;  // any name of a stream
  using Event = std::uint64_t;   // 0: none
  class Source {
   public:
    virtual ~Source() = default;
    virtual void* allocate(std::size_t bytes) = 0;  // nullptr: there is no more
    virtual void free(void* memory) noexcept = 0;   // may wait for the device
    virtual Event record(Stream stream) = 0;        // done when all that the stream was asked so far is
    virtual bool done(Event event) noexcept = 0;    // does not wait
    virtual void forget(Event event) noexcept = 0;
  };

  explicit DeviceAllocator(Source& source) : source_(source) {}
  ~DeviceAllocator();
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // For use on `stream`, 512-byte aligned if the source's memory is. Throws std::runtime_error that says what was
  // asked, what is held, and what to do, once there is no more even without the cache.
  void* allocate(std::size_t bytes, Stream stream);
  // From here on later work of the stream it was made for may use it. Work of other streams is waited for by events.
  void release(void* memory) noexcept;
  // `stream`, another than it was made for, works with it too.
  void also_used_on(void* memory, Stream stream);
  void drop_cache() noexcept;  // gives everything unused back to the source

  std::uint64_t used() const { return used_; }      // bytes of blocks handed out
  std::uint64_t cached() const { return cached_; }  // of blocks kept
  std::uint64_t source_calls() const { return source_calls_; }
  static std::size_t block_bytes(std::size_t bytes);  // the size class

 private:
  struct Block {
    std::size_t bytes = 0;
    Stream stream = 0;
    std::vector<Stream> others;
  };
  struct Waiting {
    void* memory = nullptr;
    std::size_t bytes = 0;
    Stream stream = 0;
    std::vector<Event> events;
  };
  void* take_cached(std::size_t bytes, Stream stream);
  void collect() noexcept;  // what was waited for and is done goes to the cache

  Source& source_;
  std::unordered_map<const void*, Block> blocks_;
  std::map<std::pair<Stream, std::size_t>, std::vector<void*>> free_;
  std::vector<Waiting> waiting_;
  std::uint64_t used_ = 0, cached_ = 0, source_calls_ = 0;
};

}  // namespace nanhunt::kernels
