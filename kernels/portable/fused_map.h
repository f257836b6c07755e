// SPDX-License-Identifier: Apache-2.0
// Dense maps (dense_map.h) of a few frequent formulas that leave their output's statistics and checksum besides: each
// vector is computed, stored and handed to the look's arithmetic (look_scan.h), hence the outputs of DenseMapKernel and
// the records and checksums of LookKernel, every bit of them. Tickets and sums are left as they were found, all zero.
#pragma once

#include <cstdint>

#include "kernels/portable/block.h"
#include "kernels/portable/look_kernel.h"
#include "kernels/portable/look_scan.h"
// Behind the scans, one of which has a kLanes of its own.
#include "kernels/portable/dense_map.h"
#include "kernels/fused_looks.h"

namespace nanhunt::kernels::cuda {

using FusedFormulas = Formulas<Identity, Add, Subtract, AddScaled, Multiply, Divide, MultiplyNumber, DropoutScale, Relu,
                               ReluGradient, Gelu, GeluGradient>;

inline constexpr std::uint64_t kFusedItems = 4096;  // of an output: 32 GiB

NANHUNT_HOST_DEVICE inline std::uint64_t output_bytes(const MapCall& call) {
  return static_cast<std::uint64_t>(call.walk.count) * element_bytes(call.out.dtype);
}

// A source of vectors (look_scan.h) that are made as they are taken, each once.
template <class F, DType kOut>
struct MadeSource {
  static constexpr bool kWholeBlocks = true;
  const MapCall& call;
  std::uint64_t bytes;

  template <class Take>
  NANHUNT_HOST_DEVICE void each(ItemRange range, std::uint32_t thread, Take take) const {
    constexpr std::int64_t kElements = kOut == DType::kF32 ? 4 : 8;
    auto* const out = static_cast<std::uint8_t*>(call.out.data);
    for (std::uint64_t j = range.begin + thread; j < range.end; j += kStatsThreads) {
      const std::uint64_t left = bytes - j * kVectorBytes;
      const std::int64_t first = static_cast<std::int64_t>(j) * kElements;
      if (left < kVectorBytes) {
        DenseMapKernel<F>{call}.element_by_element(first);
        const auto at = reinterpret_cast<std::uint64_t>(out + j * kVectorBytes);
        take(load_bytes(at, static_cast<std::uint32_t>(left)), j, static_cast<std::uint32_t>(left));
      } else {
        const Vector v = made_vector<F>(call, kOut, first);
        DenseMapKernel<F>::store_whole(out + j * kVectorBytes, v);
        take(v, j, kVectorBytes);
      }
    }
  }
};

// For fill_looks().
inline std::uint32_t place_of_look(const FusedLooks& looks, const DeviceTensor& tensor) {
  const auto bytes = static_cast<std::uint64_t>(tensor.count) * element_bytes(tensor.dtype);
  const auto slot = looks.find(tensor.data, bytes, tensor.dtype);
  return slot ? 1 + *slot : 0;
}

// Memory of the device.
struct FusedMemory {
  StatsPartial* partials = nullptr;  // kFusedItems
  std::uint64_t* sum = nullptr;      // one, 0
  std::uint32_t* ticket = nullptr;   // one, 0
  FusedLook* looks = nullptr;        // by slot
};

// A block for each work item of the output, whose format is kOut.
template <class F, DType kOut>
struct FusedMapKernel {
  struct Shared {
    alignas(8) unsigned char work[sizeof(Work)];
    LookShared look;
    std::uint32_t is_last;
  };
  static_assert(sizeof(Shared) <= 24 * 1024);

  FusedMemory memory;
  std::uint32_t slot = 0;
  MapCall call;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared();
    Work& work = *reinterpret_cast<Work*>(shared.work);
    const std::uint64_t bytes = output_bytes(call);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      work.view.data = reinterpret_cast<std::uint64_t>(call.out.data);
      work.view.count = static_cast<std::uint64_t>(call.walk.count);
      work.view.logical_base = 0;
      work.view.dtype = kOut;
      work.view.dims = 0;
      work.view.gapless = true;
      work.item = item_range(bytes, thread.block);
      work.slot = slot;
      work.tag = 0;
      work.first_item = 0;
      work.items = static_cast<std::uint32_t>(stats_items(bytes));
    });
    typename Block::template Registers<StatsPartial> partials;
    look_at_item<FloatLook<kOut>>(block, shared.look, MadeSource<F, kOut>{call, bytes}, work.view, bytes, work.item,
                                  partials);
    fold_item(block, shared.look, work, block.index(), memory.partials, partials);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      shared.is_last = 1;
      if (work.items == 1) return;
      atomic_add(memory.sum, shared.look.checksum);
      shared.is_last = draw_ticket(memory.ticket, work.items) == work.items - 1 ? 1 : 0;
      if (shared.is_last == 0) return;
      shared.look.checksum = atomic_add(memory.sum, std::uint64_t{0});
      *memory.sum = 0;
    });
    if (shared.is_last == 0) return;
    if (work.items > 1) fold_items(block, shared.look.warps, memory.partials, work);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      FusedLook& left = memory.looks[slot];
      left.checksum = shared.look.checksum;
      left.known = known_bits(shared.look.warps[0]);
      left.record = record_of<StatsLevel::kSums>(work, shared.look.warps[0]);
    });
  }
};

// Calls visit(kernel) with the kernel of the call's formula and format, whose arguments are still to be set. False: it
// is not one that is fused. Items must be whole blocks of the checksum: of others, ends would have to be made twice.
template <class Visit, class... F>
bool with_fused_map(const MapCall& call, Visit visit, Formulas<F...>) {
  if (!is_dense(call)) return false;
  const std::uint64_t bytes = output_bytes(call);
  if (stats_item_bytes(bytes) % kChecksumBlock != 0 || stats_items(bytes) > kFusedItems) return false;
  const auto try_one = [&]<class One>(One*) {
    if (call.formula.number != formula_number<One>()) return false;
    if (call.out.dtype == DType::kF16) {
      visit(FusedMapKernel<One, DType::kF16>{});
    } else if (call.out.dtype == DType::kBF16) {
      visit(FusedMapKernel<One, DType::kBF16>{});
    } else {
      visit(FusedMapKernel<One, DType::kF32>{});
    }
    return true;
  };
  return (try_one(static_cast<F*>(nullptr)) || ...);
}
inline bool is_fused(const MapCall& call) {
  return with_fused_map(call, [](const auto&) {}, FusedFormulas{});
}

}  // namespace nanhunt::kernels::cuda
