// SPDX-License-Identifier: Apache-2.0
// Work on a device captured once and replayed as one launch (kernels/device_ops.h), and what its replays need of the
// host: a value that may be another one in the next step is no argument of a call, it is *fed* to memory of the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device_ops.h"
#include "nanhunt/engine/module.h"
#include "nanhunt/engine/tensor.h"
#include "src/core/scoped_value.h"

namespace nanhunt::engine {

class CapturedWork {
 public:
  // Runs `work` on this thread while its device notes what it is asked for: the host's side of it happens, the device's
  // only when it is replayed. Nobody is told anything. nullptr, and why: nothing of it will happen on the device, and
  // what the host did is for the caller to undo. What `work` throws counts as a reason. `room` is for what is fed, in
  // bytes: had before the capture, for memory that a graph hands out may have been written by it before.
  static std::unique_ptr<CapturedWork> capture(const Device& device, std::size_t room,
                                               const std::function<void()>& work, std::string& why);
  // Of this thread, while `work` runs; else nullptr.
  static CapturedWork* current();
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // The first time with what was fed while it was captured; then everything is fed anew, in the same order. What a feed
  // throws leaves the device as it was.
  void replay();
  std::uint64_t bytes() const { return graph_->bytes(); }
  // From now on gradients may be stored into these alone, and into what this work made.
  void only_leaves(const std::vector<NamedTensor>& leaves);

  // For ops. Memory of the device that holds what `fill` writes to `bytes` of the host's; called now and before each
  // replay but the first.
  const void* feed(std::size_t bytes, std::function<void(void* to)> fill);
  // A tensor of the CPU without dimensions. nullptr: it was made by this work, so it is a constant of it.
  const void* feed_number(const Tensor& number);
  // That its replays read or write what was there before, so that it must not end before them.
  void keep(const std::shared_ptr<Storage>& storage);
  void expect_leaf(const Tensor& leaf) const;

 private:
  struct Feed {
    std::function<void(void* to)> fill;
    std::size_t at;
  };
  CapturedWork(const Device& device, std::size_t room);

  Device device_;
  std::uint64_t first_generation_;  // of storages that this work made
  Storage there_;  // what is fed
  std::vector<std::byte> here_;
  std::size_t used_ = 0;
  std::vector<Feed> feeds_;
  std::map<std::pair<const Storage*, std::int64_t>, const void*> numbers_;
  std::set<const TensorImpl*> leaves_;
  bool any_leaf_ = true;
  std::map<const Storage*, std::shared_ptr<Storage>> kept_;
  bool fed_ = true;  // with what the coming replay needs
  std::unique_ptr<kernels::DeviceGraph> graph_;  // ends before the memory that it reads
};

// While what it returns lives, an op of this thread reads indices that a graph's replays are fed anew.
ScopedValue<bool> reading_indices();
// Throws while this thread captures and no op reads them: others would compute from those of the capture for ever.
void expect_index_read();

// Throws while this thread captures: `what` was computed on the CPU, and would not be in a replay.
void expect_not_captured(const Tensor& tensor, const char* what);

}  // namespace nanhunt::engine
