// SPDX-License-Identifier: Apache-2.0
// A look at tensors without gaps as one kernel (block.h): a block for each work item takes the item's checksum
// (checksum_scan.h) and, of what counts as new, its statistics. Of the rest, where the checksum is not the reference's,
// the tensor's last block reads it all by itself, item after item: right before fast, for it happens where contents
// changed unseen.
// Tickets and sums are left as they were found, all zero.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/portable/block.h"
#include "kernels/portable/checksum_kernel.h"
#include "kernels/portable/checksum_scan.h"
#include "kernels/portable/tensor_stats_kernel.h"
#include "kernels/device_checks.h"

namespace nanhunt::kernels::cuda {

struct ChecksumStatsEntry {
  std::uint64_t data;
  std::uint64_t count_and_dtype;  // as TensorEntry has it
  std::uint32_t first_item;       // of all tensors before this one
  std::uint32_t reference;        // as CheckedTensor has it
  std::uint32_t slot;             // of the record, or kNoSlot
  std::uint32_t unused;
};
static_assert(sizeof(ChecksumStatsEntry) == 32);

struct ChecksumStatsTable {
  std::uint32_t tensors = 0;
  ChecksumStatsEntry entries[kChecksInParameters];

  // Gives the tensor's number.
  NANHUNT_HOST_DEVICE std::uint32_t locate(std::uint32_t block, Work& work) const {
    std::uint32_t low = 0;  // the last tensor that begins at or before this block
    std::uint32_t high = tensors;
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      (entries[middle].first_item <= block ? low : high) = middle;
    }
    const ChecksumStatsEntry& entry = entries[low];
    work.view.data = entry.data;
    work.view.count = entry.count_and_dtype & ((std::uint64_t{1} << kDTypeShift) - 1);
    work.view.logical_base = 0;
    work.view.dtype = static_cast<DType>(entry.count_and_dtype >> kDTypeShift);
    work.view.dims = 0;
    work.view.gapless = true;
    const std::uint64_t bytes = work.view.count * element_bytes(work.view.dtype);
    work.item = item_range(bytes, block - entry.first_item);
    work.slot = entry.slot;
    work.tag = entry.reference & ~kFirstCheck;
    work.first_item = entry.first_item;
    work.items = static_cast<std::uint32_t>(stats_items(bytes));
    return low;
  }
};

// Gives the blocks of the launch.
inline std::uint32_t fill_checksum_stats(std::span<const ChecksumStatsTensor> tensors, ChecksumStatsTable& table) {
  std::uint32_t items = 0;
  table.tensors = 0;
  for (const ChecksumStatsTensor& entry : tensors) {
    if (table.tensors == kChecksInParameters) break;
    const DeviceTensor& tensor = entry.tensor;
    const auto count = static_cast<std::uint64_t>(tensor.count);
    table.entries[table.tensors++] = {reinterpret_cast<std::uint64_t>(tensor.data),
                                      count | static_cast<std::uint64_t>(tensor.dtype) << kDTypeShift,
                                      items,
                                      tensor.tag,
                                      entry.slot,
                                      0};
    items += static_cast<std::uint32_t>(stats_items(count * element_bytes(tensor.dtype)));
  }
  return items;
}

// Memory of the device.
struct ChecksumStatsMemory {
  ChecksumMemory checks;                 // sums and tickets of kChecksInParameters tensors
  StatsPartial* partials = nullptr;      // for each item of the launch
  DeviceStatsRecord* records = nullptr;  // by slot
  std::uint32_t* known = nullptr;        // by reference: kInfBits, kNanBits of what was read
};

// What threads have of an item together: the block's where it is the only one of its tensor, else with those of others.
template <class Block>
NANHUNT_HOST_DEVICE inline void fold_item(Block& block, ChecksumStatsShared& shared, const Work& work, std::uint32_t item,
                                          StatsPartial* items,
                                          typename Block::template Registers<StatsPartial>& partials) {
  block.fold_warps(partials, [](StatsPartial& into, const StatsPartial& from) { fold_partial(into, from); });
  block.phase(partials, [&](const Thread& thread, const StatsPartial& mine) {
    if (thread.lane() == 0) shared.warps[thread.warp()] = mine;
  });
  block.phase([&](const Thread& thread) {
    if (thread.index != 0) return;
    fold_warps_of(shared.warps);
    if (work.items > 1) items[work.first_item + item] = shared.warps[0];
  });
}

// What a launch is given.
struct ChecksumStatsCall {
  ChecksumStatsMemory memory;
  ChecksumStatsTable table;
};
static_assert(sizeof(ChecksumStatsCall) <= kParameterBytes);

struct ChecksumStatsKernel {
  struct Shared {
    alignas(8) unsigned char work[sizeof(Work)];  // a Work: shared memory may hold no constructors
    ChecksumStatsShared look;
    std::uint32_t tensor, reads, is_last, again;
  };
  static_assert(sizeof(Shared) <= 24 * 1024);

  ChecksumStatsCall call;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    const ChecksumStatsTable& table = call.table;
    Shared& shared = block.shared();
    Work& work = *reinterpret_cast<Work*>(shared.work);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      shared.tensor = table.locate(thread.block, work);
      const ChecksumStatsEntry& entry = table.entries[shared.tensor];
      shared.reads = entry.slot != kNoSlot && (work.tag == 0 || (entry.reference & kFirstCheck) != 0) ? 1 : 0;
    });
    const std::uint64_t bytes = work.view.count * element_bytes(work.view.dtype);
    const std::uint32_t own = block.index() - work.first_item;
    bool reads = shared.reads != 0;
    typename Block::template Registers<StatsPartial> partials;
    checksum_item(block, shared.look, work.view.data, bytes, work.item);
    // A second time, over all items, by the last block of a tensor that turned out to differ.
    for (std::uint32_t item = own, end = own + 1;; item = 0, end = work.items) {
      const bool again = reads && shared.reads == 0;
      for (; reads && item < end; ++item) read_item(block, shared, work, bytes, item, partials);
      if (again) break;
      block.phase([&](const Thread& thread) {
        if (thread.index == 0) leave_checksum(shared, work, bytes);
      });
      if (shared.is_last == 0) return;
      if (reads) break;
      if (shared.again == 0) return;
      reads = true;
    }
    if (work.items > 1) fold_items(block, shared.look.warps, call.memory.partials, work);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      call.memory.records[work.slot] = record_of(work, shared.look.warps[0], StatsLevel::kSums);
      if (work.tag != 0) call.memory.known[work.tag] = known_bits(shared.look.warps[0]);
    });
  }

 private:
  template <class Block>
  NANHUNT_HOST_DEVICE void read_item(Block& block, Shared& shared, const Work& work, std::uint64_t bytes,
                                     std::uint32_t item,
                                     typename Block::template Registers<StatsPartial>& partials) const {
    block.phase(partials, [&](const Thread& thread, StatsPartial& mine) {
      scan_item(work.view, item_range(bytes, item), thread.index, mine);
    });
    fold_item(block, shared.look, work, item, call.memory.partials, partials);
  }

  // By one thread, once its block has left what it knows.
  NANHUNT_HOST_DEVICE void leave_checksum(Shared& shared, const Work& work, std::uint64_t bytes) const {
    const std::uint32_t tensor = shared.tensor;
    std::uint64_t checksum = bytes == 0 ? 0 : shared.look.checksum;
    shared.is_last = 1;
    if (work.items > 1) {
      atomic_add(call.memory.checks.sums + tensor, checksum);
      shared.is_last = draw_ticket(call.memory.checks.tickets + tensor, work.items) == work.items - 1 ? 1 : 0;
      if (shared.is_last == 0) return;
      checksum = atomic_add(call.memory.checks.sums + tensor, std::uint64_t{0});
      call.memory.checks.sums[tensor] = 0;
    }
    const bool differs = leave_check(call.memory.checks, tensor, call.table.entries[tensor].reference, checksum);
    shared.again = differs && shared.reads == 0 && work.slot != kNoSlot ? 1 : 0;
  }
};

}  // namespace nanhunt::kernels::cuda
