// SPDX-License-Identifier: Apache-2.0
// tensor_stats as one kernel (block.h): a block for each work item. It scans its item; the last block of a tensor folds
// the items in order and leaves the record. Tickets and accumulators are left as they were found, all zero.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/portable/binade_scan.h"
#include "kernels/portable/block.h"
#include "kernels/portable/tensor_stats_scan.h"
#include "kernels/origin_histograms.h"

namespace nanhunt::kernels::cuda {

// One row of a table of tensors without gaps.
struct TensorEntry {
  std::uint64_t data;
  std::uint64_t count_and_dtype;  // dtype in the upper 8 bits
  std::uint32_t first_item;       // of all tensors before this one
  std::uint32_t tag;
};
static_assert(sizeof(TensorEntry) == 24);

inline constexpr int kDTypeShift = 56;
constexpr TensorEntry make_entry(std::uint64_t data, std::uint64_t count, DType dtype, std::uint32_t first_item,
                                 std::uint32_t tag) {
  return {data, count | static_cast<std::uint64_t>(dtype) << kDTypeShift, first_item, tag};
}

NANHUNT_HOST_DEVICE constexpr std::uint32_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}
NANHUNT_HOST_DEVICE constexpr bool is_float(DType dtype) { return dtype <= DType::kE5M2; }

NANHUNT_HOST_DEVICE inline std::uint32_t binades_of(DType dtype) {
  std::uint32_t binades = 0;
  for_float_dtype(dtype, [&]<DType kDType>() { binades = StatsFormat<kDType>::kBinades; });
  return binades;
}

// What a block has to do.
struct Work {
  DeviceStatsView view;
  ItemRange item;
  std::uint32_t slot = 0, tag = 0;
  std::uint32_t first_item = 0, items = 1;  // of the tensor
};

NANHUNT_HOST_DEVICE inline ItemRange item_range(std::uint64_t bytes, std::uint64_t item) {
  const std::uint64_t step = stats_item_bytes(bytes) / kVectorBytes;
  const std::uint64_t vectors = (bytes + kVectorBytes - 1) / kVectorBytes;
  return {lesser(item * step, vectors), lesser((item + 1) * step, vectors)};
}

// Tables say which tensor and which part of it a block has.
NANHUNT_HOST_DEVICE inline void locate_in(const TensorEntry* entries, std::uint32_t tensors, std::uint32_t block,
                                          Work& work) {
  std::uint32_t low = 0;  // the last tensor that begins at or before this block
  std::uint32_t high = tensors;
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (entries[middle].first_item <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const TensorEntry entry = entries[low];
  work.view.data = entry.data;
  work.view.count = entry.count_and_dtype & ((std::uint64_t{1} << kDTypeShift) - 1);
  work.view.logical_base = 0;
  work.view.dtype = static_cast<DType>(entry.count_and_dtype >> kDTypeShift);
  work.view.dims = 0;
  work.view.gapless = true;
  const std::uint64_t bytes = work.view.count * element_bytes(work.view.dtype);
  work.item = item_range(bytes, block - entry.first_item);
  work.slot = low;
  work.tag = entry.tag;
  work.first_item = entry.first_item;
  work.items = static_cast<std::uint32_t>(stats_items(bytes));
}

// What a launch reads, by value: tensors without gaps, or one view.
struct StatsTable {
  DeviceStatsView view;       // where there are no tensors
  std::uint32_t tag = 0;      // of the view
  std::uint32_t tensors = 0;  // at most kTensorsInParameters
  TensorEntry entries[kTensorsInParameters];

  NANHUNT_HOST_DEVICE void locate(std::uint32_t block, Work& work) const {
    if (tensors != 0) return locate_in(entries, tensors, block, work);
    work.view = view;
    const std::uint64_t bytes = view.count * element_bytes(view.dtype);
    work.item = item_range(bytes, block);
    work.slot = 0;
    work.tag = tag;
    work.first_item = 0;
    work.items = static_cast<std::uint32_t>(stats_items(bytes));
  }
};
// A few views by value, each with the tag that is its number, from 1.
struct FewViews {
  std::uint32_t tensors = 0;
  std::uint32_t first_item[kMaxOriginTensors] = {};
  DeviceStatsView views[kMaxOriginTensors];

  NANHUNT_HOST_DEVICE void locate(std::uint32_t block, Work& work) const {
    std::uint32_t at = 0;
    while (at + 1 < tensors && first_item[at + 1] <= block) ++at;
    work.view = views[at];
    const std::uint64_t bytes = work.view.count * element_bytes(work.view.dtype);
    work.item = item_range(bytes, block - first_item[at]);
    work.slot = at;
    work.tag = at + 1;
    work.first_item = first_item[at];
    work.items = static_cast<std::uint32_t>(stats_items(bytes));
  }
};

// Memory of the device.
struct StatsMemory {
  StatsPartial* partials = nullptr;       // for each item of the launch
  std::uint32_t* tickets = nullptr;       // for each tensor, 0
  std::uint64_t* accumulators = nullptr;  // kDetailWords for each tensor, 0; for histograms
  DeviceStatsRecord* records = nullptr;   // may be nullptr
  std::uint64_t* details = nullptr;       // of histograms
  const std::uint32_t* gates = nullptr;   // a tensor with a tag is read where its tag's word is not 0; nullptr: all are
  std::uint32_t* known = nullptr;         // by tag, if there is one: kInfBits, kNanBits of what was read
  std::uint64_t* arena = nullptr;         // results go there, to the word before that its gate says: record, details
};

NANHUNT_HOST_DEVICE inline StatsPartial load_partial(const StatsPartial* at) {
  constexpr std::uint32_t kWords = sizeof(StatsPartial) / sizeof(std::uint64_t);
  std::uint64_t words[kWords];
  NANHUNT_UNROLL
  for (std::uint32_t i = 0; i < kWords; ++i) words[i] = load_fresh(reinterpret_cast<const std::uint64_t*>(at) + i);
  StatsPartial partial;
  memcpy(&partial, words, sizeof partial);
  return partial;
}

// What the warps of a block know becomes what the first of them knows, in their order.
NANHUNT_HOST_DEVICE inline void fold_warps_of(StatsPartial* warps) {
  for (std::uint32_t warp = 1; warp < kStatsThreads / kWarpLanes; ++warp) fold_partial(warps[0], warps[warp]);
}

// All items of a tensor in their order, once each has left its own; warps[0] has the whole.
template <class Block>
NANHUNT_HOST_DEVICE inline void fold_items(Block& block, StatsPartial* warps, const StatsPartial* partials,
                                           const Work& work) {
  typename Block::template Registers<StatsPartial> all;
  block.phase(all, [&](const Thread& thread, StatsPartial& mine) {
    mine = empty_partial(!is_float(work.view.dtype));
    for (std::uint32_t i = thread.index; i < work.items; i += thread.count) {
      fold_partial(mine, load_partial(partials + work.first_item + i));
    }
  });
  block.fold_warps(all, [](StatsPartial& into, const StatsPartial& from) { fold_partial(into, from); });
  block.phase(all, [&](const Thread& thread, const StatsPartial& mine) {
    if (thread.lane() == 0) warps[thread.warp()] = mine;
  });
  block.phase([&](const Thread& thread) {
    if (thread.index == 0) fold_warps_of(warps);
  });
}

NANHUNT_HOST_DEVICE inline DeviceStatsRecord record_of(const Work& work, StatsPartial all, StatsLevel level) {
  const DType dtype = work.view.dtype;
  DeviceStatsRecord record;
  record.count = work.view.count;
  record.tag = work.tag;
  record.dtype = dtype;
  record.level = level;
  record.first = all.first;
  if (is_float(dtype)) finish_zeros(all);
  record.nan = all.nan;
  record.pos_inf = all.pos_inf;
  record.neg_inf = all.neg_inf;
  record.zero = all.zero;
  record.subnormal = all.subnormal;
  record.largest = all.largest;
  record.largest_negative = all.largest_negative;
  record.least_nonzero = all.least_nonzero;
  double scale = 1;
  for_float_dtype(dtype, [&]<DType kDType>() { scale = sum_scale<kDType>(); });
  record.sum = all.sum * scale;
  record.sum_sq = all.sum_sq * (scale * scale);
  // The plain sum passed the largest double on its way: the small one tells whether the whole does.
  if (dtype == DType::kF64 && !((all.sum - all.sum) == 0)) record.sum = all.sum_small * 0x1p64;
  return record;
}
NANHUNT_HOST_DEVICE inline std::uint32_t known_bits(const StatsPartial& all) {
  return (all.nan != 0 ? kNanBits : 0) | (all.pos_inf + all.neg_inf != 0 ? kInfBits : 0);
}

// What one thread has of an item of any dtype. A call for each item: compiled once, whoever calls.
template <class View>
NANHUNT_HOST_DEVICE NANHUNT_ONCE void scan_item(const View& view, ItemRange item, std::uint32_t thread,
                                                StatsPartial& mine) {
  mine = empty_partial(!is_float(view.dtype));
  for_float_dtype(view.dtype, [&]<DType kDType>() { scan_float<kDType>(view, item, thread, mine); });
  if (view.dtype == DType::kI64) {
    scan_integer<DType::kI64>(view, item, thread, mine);
  } else if (view.dtype == DType::kI32) {
    scan_integer<DType::kI32>(view, item, thread, mine);
  } else if (view.dtype == DType::kU8) {
    scan_integer<DType::kU8>(view, item, thread, mine);
  } else if (view.dtype == DType::kBool) {
    scan_integer<DType::kBool>(view, item, thread, mine);
  }
}

// kHistogram reads every item a second time (binade_scan.h).
template <StatsLevel kLevel, class Table>
struct TensorStatsKernel {
  static_assert(kLevel == StatsLevel::kSums || kLevel == StatsLevel::kHistogram);
  static constexpr bool kHistogram = kLevel == StatsLevel::kHistogram;
  struct None {};

  struct Shared {
    alignas(8) unsigned char work[sizeof(Work)];  // a Work: shared memory may hold no constructors
    StatsPartial warps[kStatsThreads / kWarpLanes];
    std::uint32_t is_last, goes_on;
    std::conditional_t<kHistogram, BinadeCounts, None> counts;
  };
  static_assert(sizeof(Shared) <= 48 * 1024);

  StatsMemory memory;
  Table table;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared();
    Work& work = *reinterpret_cast<Work*>(shared.work);
    block.phase([&](const Thread& thread) {
      if (thread.index == 0) {
        table.locate(thread.block, work);
        shared.goes_on = memory.gates == nullptr || work.tag == 0 || memory.gates[work.tag] != 0 ? 1 : 0;
      }
      if constexpr (kHistogram) shared.counts.clear(thread.index);
    });
    if (shared.goes_on == 0) return;

    typename Block::template Registers<StatsPartial> scanned;
    block.phase(scanned, [&](const Thread& thread, StatsPartial& mine) {
      scan_item(work.view, work.item, thread.index, mine);
      if constexpr (kHistogram) count_binades(work.view, work.item, thread.index, shared.counts);
    });
    block.fold_warps(scanned, [](StatsPartial& into, const StatsPartial& from) { fold_partial(into, from); });
    block.phase(scanned, [&](const Thread& thread, const StatsPartial& mine) {
      if (thread.lane() == 0) shared.warps[thread.warp()] = mine;
      if constexpr (kHistogram) add_details(shared.counts, work, thread);
    });

    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      fold_warps_of(shared.warps);
      shared.is_last = 1;
      if (work.items == 1) return;
      memory.partials[thread.block] = shared.warps[0];
      const bool last = draw_ticket(memory.tickets + work.slot, work.items) == work.items - 1;
      shared.is_last = last ? 1 : 0;
    });
    if (shared.is_last == 0) return;

    if (work.items > 1) fold_items(block, shared.warps, memory.partials, work);
    block.phase([&](const Thread& thread) {
      if constexpr (kHistogram) hand_over_details(work, thread);
      if (thread.index == 0) leave_record(work, shared.warps[0]);
    });
  }

 private:
  NANHUNT_HOST_DEVICE void add_details(const BinadeCounts& counts, const Work& work, const Thread& thread) const {
    const std::uint32_t words = detail_words(work);
    for (std::uint32_t i = thread.index; i < words; i += thread.count) {
      if (counts.word[i] != 0) {
        atomic_add(memory.accumulators + work.slot * kDetailWords + i, std::uint64_t{counts.word[i]});
      }
    }
  }

  NANHUNT_HOST_DEVICE void hand_over_details(const Work& work, const Thread& thread) const {
    const std::uint32_t words = detail_words(work);
    std::uint64_t* from = memory.accumulators + work.slot * kDetailWords;
    std::uint64_t* to = memory.arena != nullptr ? memory.arena + memory.gates[work.tag] - 1 + kStatsRecordWords
                                                : memory.details + work.slot * kDetailWords;
    for (std::uint32_t i = thread.index; i < words; i += thread.count) {
      to[i] = load_fresh(from + i);
      from[i] = 0;
    }
  }

  NANHUNT_HOST_DEVICE static std::uint32_t detail_words(const Work& work) {
    return is_float(work.view.dtype) ? kThresholds + binades_of(work.view.dtype) : 0;
  }

  NANHUNT_HOST_DEVICE void leave_record(const Work& work, const StatsPartial& all) const {
    const DeviceStatsRecord record = record_of(work, all, kLevel);
    if (memory.records != nullptr) memory.records[work.slot] = record;
    if (memory.known != nullptr && work.tag != 0) {
      memory.known[work.tag] = known_bits(all);
    }
    if constexpr (kHistogram) {
      if (memory.arena != nullptr) memcpy(memory.arena + memory.gates[work.tag] - 1, &record, sizeof record);
    }
  }
};

using StatsKernel = TensorStatsKernel<StatsLevel::kSums, StatsTable>;
using HistogramKernel = TensorStatsKernel<StatsLevel::kHistogram, FewViews>;
static_assert(sizeof(StatsKernel) <= kParameterBytes && sizeof(HistogramKernel) <= kParameterBytes);

}  // namespace nanhunt::kernels::cuda
