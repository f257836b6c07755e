// SPDX-License-Identifier: Apache-2.0
// Several ranks that train together: what a group of them exchanges, and groups within one process. Ranks of one group
// make the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "nanhunt/engine/device.h"
#include "nanhunt/engine/tensor.h"
#include "nanhunt/event.h"

namespace nanhunt::engine {

// Another rank has ended or does not answer: nothing can be exchanged any more.
struct RankLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Moves bytes of one device, addresses of its, without the host: queued behind the device's work. Waits for no device.
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  // `all` gets a part of `bytes` of each rank, in their order.
  virtual void gather(const void* mine, void* all, std::size_t bytes) = 0;
  virtual void broadcast(void* contents, std::size_t bytes, std::uint32_t root) = 0;
};

// Moves bytes, and computes nothing: sums are the engine's, so they have the same bits whoever carries them.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual std::uint32_t rank() const = 0;
  virtual std::uint32_t size() const = 0;
  // `all` gets size() parts, each as long as `mine`, in the order of the ranks.
  virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  virtual void broadcast(std::span<std::byte> contents, std::uint32_t root) = 0;
  // One rank runs at a time, until it waits for the others within a call of this group: it must not wait elsewhere.
  virtual bool takes_turns() const { return false; }
  // For contents of this device; nullptr: they go through the host.
  virtual DeviceCommunicator* communicator(const Device& /*device*/) { return nullptr; }

  std::uint64_t number_call() { return calls_++; }  // for observers: all ranks count alike

 private:
  std::uint64_t calls_ = 0;
};

// In place, of contiguous tensors without gradient. Sums are added up in the order of the ranks, each partial sum
// rounded to the tensor's format as a ring's are: 16-bit ones overflow. kMax compares, so it may pass over a NaN, and
// goes through the host. Observed as "c10d::allreduce_" and "c10d::broadcast_" in phase comm.
Tensor& all_reduce_(Tensor& self, RankGroup& ranks, Reduction reduction = Reduction::kSum);
Tensor& broadcast_(Tensor& self, RankGroup& ranks, std::uint32_t root = 0);

// Ranks within this process, each on a thread of its own. One runs at a time: until it waits for the others.
using RankBody = std::function<void(const std::shared_ptr<RankGroup>& ranks)>;
// Every rank runs `body`. Once one throws, the others get RankLost; what it threw comes out of here.
void run_ranks(std::uint32_t size, const RankBody& body);
// The caller is rank `rank`; the others run `body` while it waits for them. When the group goes, they get RankLost.
std::shared_ptr<RankGroup> with_companions(std::uint32_t size, std::uint32_t rank, RankBody body);

// The same ranks; NCCL moves contents of `device`, of which every rank has its own. All ranks call it. Where one of them
// cannot, `why` says on all of them which and why, and contents go through the host as before; so for ranks that take
// turns. Sums have the same bits as through the host, but for those of a NaN.
std::shared_ptr<RankGroup> with_nccl(std::shared_ptr<RankGroup> ranks, const Device& device, std::string& why);

}  // namespace nanhunt::engine
