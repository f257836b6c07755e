// SPDX-License-Identifier: Apache-2.0
// The buffers that CUPTI writes activity records into. Its callbacks take no user data, so there is one of these in a
// process, for good; between sessions it holds no memory.
#pragma once

#include <cupti.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "hooks/cupti/cupti/library.h"

namespace nanhunt::hooks {

class ActivityBuffers {
 public:
  struct Filled {
    std::uint8_t* data = nullptr;
    std::size_t valid = 0;  // bytes
  };
  struct Counts {
    std::uint64_t dropped = 0, refused = 0, given_up = 0;
  };

  static ActivityBuffers& instance();

  void open(const CuptiCalls& calls, std::size_t bytes, std::size_t max_buffers, bool may_refuse);
  // `finalized`: CUPTI has given everything up, so all is freed. Else what it may still write to is left alone.
  void close(bool finalized);

  std::vector<Filled> take_filled();
  void give_back(const Filled& buffer);  // zeroes it
  Counts counts() const;

  static void CUPTIAPI on_request(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records);
  static void CUPTIAPI on_complete(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                                   std::size_t valid);

 private:
  ActivityBuffers() = default;
  std::uint8_t* request() noexcept;
  void complete(std::uint8_t* buffer, std::size_t size, std::size_t valid, std::size_t dropped) noexcept;

  mutable std::mutex mutex_;  // the callbacks take it: never held across a call into CUPTI
  CuptiCalls calls_;
  bool open_ = false, may_refuse_ = true;
  std::size_t bytes_ = 0, max_buffers_ = 0;
  std::vector<std::uint8_t*> free_, all_;
  std::deque<Filled> filled_;
  Counts counts_;
};

}  // namespace nanhunt::hooks
