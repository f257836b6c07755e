// SPDX-License-Identifier: Apache-2.0
#include "hooks/cupti/cupti/buffers.h"

#include <cstdlib>
#include <cstring>

namespace nanhunt::hooks {

ActivityBuffers& ActivityBuffers::instance() {
  static ActivityBuffers* const buffers = new ActivityBuffers;  // outlives every thread of CUPTI's
  return *buffers;
}

void ActivityBuffers::open(const CuptiCalls& calls, std::size_t bytes, std::size_t max_buffers, bool may_refuse) {
  std::lock_guard lock(mutex_);
  calls_ = calls;
  bytes_ = bytes;
  max_buffers_ = max_buffers;
  may_refuse_ = may_refuse;
  counts_ = {};
  open_ = true;
}

void ActivityBuffers::close(bool finalized) {
  std::lock_guard lock(mutex_);
  open_ = false;
  if (finalized) {
    for (std::uint8_t* buffer : all_) std::free(buffer);
  } else {
    for (std::uint8_t* buffer : free_) std::free(buffer);
    for (const Filled& buffer : filled_) std::free(buffer.data);
  }
  all_ = {};
  free_ = {};
  filled_ = {};
}

std::vector<ActivityBuffers::Filled> ActivityBuffers::take_filled() {
  std::lock_guard lock(mutex_);
  std::vector<Filled> taken(filled_.begin(), filled_.end());
  filled_.clear();
  return taken;
}

void ActivityBuffers::give_back(const Filled& buffer) {
  // CUPTI was told that it gets zeros. All of it: behind what is valid a record may have been begun.
  std::memset(buffer.data, 0, bytes_);
  std::lock_guard lock(mutex_);
  if (open_) free_.push_back(buffer.data);
}

ActivityBuffers::Counts ActivityBuffers::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void CUPTIAPI ActivityBuffers::on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  ActivityBuffers& self = instance();
  *buffer = self.request();
  *size = *buffer == nullptr ? 0 : self.bytes_;
  *max_records = 0;
}

std::uint8_t* ActivityBuffers::request() noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (!open_) return nullptr;
    if (!free_.empty()) {
      std::uint8_t* const buffer = free_.back();
      free_.pop_back();
      return buffer;
    }
    if (all_.size() >= max_buffers_) {
      if (may_refuse_) {
        ++counts_.refused;
        return nullptr;
      }
      if (!filled_.empty()) {
        const Filled oldest = filled_.front();
        filled_.pop_front();
        ++counts_.given_up;
        std::memset(oldest.data, 0, bytes_);
        return oldest.data;
      }
      // CUPTI holds all of them: one more, for it cannot be refused.
    }
    all_.reserve(all_.size() + 1);
    free_.reserve(all_.size() + 1);
    auto* const buffer = static_cast<std::uint8_t*>(std::calloc(bytes_, 1));
    if (buffer == nullptr) {
      ++counts_.refused;
      return nullptr;
    }
    all_.push_back(buffer);
    return buffer;
  } catch (...) {  // no memory, or the mutex itself failed
    return nullptr;
  }
}

void CUPTIAPI ActivityBuffers::on_complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                                           std::size_t size, std::size_t valid) {
  ActivityBuffers& self = instance();
  std::size_t dropped = 0;
  const auto get_dropped = self.calls_.get_dropped;
  if (get_dropped == nullptr || get_dropped(context, stream, &dropped) != CUPTI_SUCCESS) dropped = 0;
  self.complete(buffer, size, valid, dropped);
}

void ActivityBuffers::complete(std::uint8_t* buffer, std::size_t size, std::size_t valid,
                               std::size_t dropped) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (!open_) return;
    counts_.dropped += dropped;
    if (buffer == nullptr || size != bytes_) return;  // none, or of a session that CUPTI did not give up
    if (valid == 0) {
      free_.push_back(buffer);
    } else {
      filled_.push_back({buffer, valid});
    }
  } catch (...) {  // no memory for the list: the buffer stays with all_ until close()
  }
}

}  // namespace nanhunt::hooks
