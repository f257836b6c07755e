// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_allocator.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace nanhunt::kernels {
namespace {

constexpr std::size_t kUnit = 512;

std::string megabytes(std::uint64_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

}  // namespace

// 8 classes for each power of two, so that at most an eighth of a block is unused.
std::size_t DeviceAllocator::block_bytes(std::size_t bytes) {
  const std::size_t units = std::max<std::size_t>((bytes + kUnit - 1) / kUnit, 1);
  if (units <= 8) return units * kUnit;
  const std::size_t step = std::bit_floor(units - 1) / 8;
  return (units + step - 1) / step * step * kUnit;
}

DeviceAllocator::~DeviceAllocator() {
  for (const Waiting& waiting : waiting_) {
    for (const Event event : waiting.events) source_.forget(event);
    source_.free(waiting.memory);
  }
  drop_cache();
  for (const auto& [memory, block] : blocks_) source_.free(const_cast<void*>(memory));
}

void* DeviceAllocator::take_cached(std::size_t bytes, Stream stream) {
  const auto found = free_.find({stream, bytes});
  if (found == free_.end() || found->second.empty()) return nullptr;
  void* memory = found->second.back();
  found->second.pop_back();
  cached_ -= bytes;
  return memory;
}

void* DeviceAllocator::allocate(std::size_t bytes, Stream stream) {
  if (bytes > (std::size_t{1} << 46))
    throw std::runtime_error("the device was asked for " + megabytes(bytes) + ": too much");
  const std::size_t size = block_bytes(bytes);
  void* memory = take_cached(size, stream);
  if (memory == nullptr && !waiting_.empty()) {
    collect();
    memory = take_cached(size, stream);
  }
  if (memory == nullptr) {
    ++source_calls_;
    memory = source_.allocate(size);
  }
  if (memory == nullptr && (cached_ != 0 || !waiting_.empty())) {
    collect();
    drop_cache();
    ++source_calls_;
    memory = source_.allocate(size);
  }
  if (memory == nullptr) {
    throw std::runtime_error("the device is out of memory: " + megabytes(size) + " were asked for, this run holds " +
                             megabytes(used_) +
                             ". Use a smaller batch or model, or end what else runs on that device.");
  }
  blocks_.emplace(memory, Block{size, stream, {}});
  used_ += size;
  return memory;
}

void DeviceAllocator::also_used_on(void* memory, Stream stream) {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end() || found->second.stream == stream) return;
  std::vector<Stream>& others = found->second.others;
  if (std::find(others.begin(), others.end(), stream) == others.end()) others.push_back(stream);
}

void DeviceAllocator::release(void* memory) noexcept {
  const auto found = blocks_.find(memory);
  if (found == blocks_.end()) return;
  const Block block = std::move(found->second);
  blocks_.erase(found);
  used_ -= block.bytes;
  Waiting waiting{memory, block.bytes, block.stream, {}};
  try {
    for (const Stream other : block.others) waiting.events.push_back(source_.record(other));
    if (waiting.events.empty()) {
      free_[{block.stream, block.bytes}].push_back(memory);
      cached_ += block.bytes;
    } else {
      waiting_.push_back(std::move(waiting));
    }
  } catch (...) {  // no room for the lists, or no event: the source's own free is always right
    source_.free(memory);
  }
}

void DeviceAllocator::collect() noexcept {
  std::vector<Waiting> still;
  for (Waiting& waiting : waiting_) {
    const bool done = std::all_of(waiting.events.begin(), waiting.events.end(),
                                  [this](Event event) { return source_.done(event); });
    try {
      if (!done) {
        still.push_back(std::move(waiting));
        continue;
      }
      for (const Event event : waiting.events) source_.forget(event);
      free_[{waiting.stream, waiting.bytes}].push_back(waiting.memory);
      cached_ += waiting.bytes;
    } catch (...) {
      source_.free(waiting.memory);
    }
  }
  waiting_ = std::move(still);
}

void DeviceAllocator::drop_cache() noexcept {
  for (auto& [key, blocks] : free_) {
    for (void* memory : blocks) source_.free(memory);
    blocks.clear();
  }
  cached_ = 0;
}

}  // namespace nanhunt::kernels
