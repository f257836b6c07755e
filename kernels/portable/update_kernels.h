// SPDX-License-Identifier: Apache-2.0
// Updates that changed nothing (element_evidence.h), found from what is left after the op: x is certainly unchanged
// where the same change leaves x as it is and takes neither neighbour of x to x. The change's formula is the CPU's too.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/block.h"
#include "kernels/element_evidence.h"

namespace nanhunt::kernels::cuda {

// But for `keep`.
NANHUNT_HOST_DEVICE inline float update_change(const UpdateFormula& f, float a, float b) {
  switch (f.kind) {
    case UpdateKind::kScaled:
      return f.factor * a;
    case UpdateKind::kQuotient:
      return f.factor * a / b;
    case UpdateKind::kDecay:
      return 0;
    case UpdateKind::kSgd: {
      // With a buffer it may be Nesterov's, which is larger where both point the same way: nothing is taken for lost
      // that could have been moved by either.
      const float nesterov = a + f.momentum * b;
      return f.factor * (f.momentum != 0 && std::fabs(nesterov) > std::fabs(b) ? nesterov : b);
    }
    default:
      return f.factor * a / (std::sqrt(b) / f.correction + f.eps);
  }
}
NANHUNT_HOST_DEVICE inline bool change_is_known(const UpdateFormula& f, float b) {
  return f.kind != UpdateKind::kAdam || static_cast<double>(b) >= f.smallest_square;
}
NANHUNT_HOST_DEVICE inline bool is_finite_bits(float value) {
  return (bits_as<std::uint32_t>(value) & 0x7f80'0000u) != 0x7f80'0000u;
}

// Shared memory may hold no constructors.
struct UpdateTally {
  std::uint64_t updates, lost;
  double all_sizes, lost_sizes;
};

struct LostUpdatesKernel {
  static constexpr std::uint32_t kThreads = 512, kMostBlocks = 512;
  static_assert(kMostBlocks <= kThreads, "a thread of the last block takes one block's tally");
  struct Shared {
    UpdateTally warps[kThreads / kWarpLanes];
    std::uint32_t is_last;
  };
  // Memory of the device that launches of one stream share.
  struct Memory {
    UpdateTally tallies[kMostBlocks];
    std::uint32_t tickets, unused;  // 0, and left so
  };
  UpdatesCall call;
  Memory* memory;
  DeviceUpdates* out;

  // Depends on the number of elements alone, and so do the sums.
  NANHUNT_HOST_DEVICE std::uint32_t blocks() const {
    constexpr std::int64_t kShare = 8 * std::int64_t{kThreads};
    const std::int64_t wanted = (call.count + kShare - 1) / kShare;
    return static_cast<std::uint32_t>(wanted < 1 ? 1 : wanted < kMostBlocks ? wanted : kMostBlocks);
  }

  // Thread t of all takes elements t, t + all threads, ... in order. The last block adds those of all in their order.
  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Registers<UpdateTally> tallies;
    Shared& shared = block.shared();
    block.phase(tallies, [&](const Thread& thread, UpdateTally& mine) {
      mine = {0, 0, 0, 0};
      const auto count = static_cast<std::uint64_t>(call.count);
      for (std::uint64_t i = thread.global_index(); i < count; i += thread.global_count()) {
        judge(static_cast<std::int64_t>(i), mine);
      }
    });
    fold(block, tallies);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      shared.is_last = 0;
      if (thread.blocks == 1) return leave(shared.warps[0]);
      memory->tallies[thread.block] = shared.warps[0];
      shared.is_last = draw_ticket(&memory->tickets, thread.blocks) == thread.blocks - 1 ? 1 : 0;
    });
    if (shared.is_last == 0) return;
    block.phase(tallies, [&](const Thread& thread, UpdateTally& mine) {
      mine = {0, 0, 0, 0};
      if (thread.index < thread.blocks) mine = memory->tallies[thread.index];
    });
    fold(block, tallies);
    block.phase([&](const Thread& thread) {
      if (thread.index == 0) leave(shared.warps[0]);
    });
  }

 private:
  // Threads as their warps fold, then warps in order: the first warp's has all.
  template <class Block>
  NANHUNT_HOST_DEVICE void fold(Block& block, typename Block::template Registers<UpdateTally>& tallies) const {
    Shared& shared = block.shared();
    block.fold_warps(tallies, [](UpdateTally& into, const UpdateTally& from) { add(into, from); });
    block.phase(tallies, [&](const Thread& thread, const UpdateTally& mine) {
      if (thread.lane() == 0) shared.warps[thread.warp()] = mine;
    });
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      for (std::uint32_t w = 1; w < thread.count / kWarpLanes; ++w) add(shared.warps[0], shared.warps[w]);
    });
  }
  NANHUNT_HOST_DEVICE void leave(const UpdateTally& all) const {
    DeviceUpdates found;
    found.updates = all.updates;
    found.lost = all.lost;
    found.all_sizes = all.all_sizes;
    found.lost_sizes = all.lost_sizes;
    *out = found;
  }
  NANHUNT_HOST_DEVICE static void add(UpdateTally& into, const UpdateTally& from) {
    into.updates += from.updates;
    into.lost += from.lost;
    into.all_sizes += from.all_sizes;
    into.lost_sizes += from.lost_sizes;
  }
  NANHUNT_HOST_DEVICE float widened(std::uint16_t code) const {
    return call.self.dtype == DType::kF16 ? half_to_float(code) : bfloat_to_float(code);
  }
  NANHUNT_HOST_DEVICE bool takes_to(float from, float x, float change, float factor) const {
    return rounded_to_16_bits(call.self.dtype, from * call.formula.keep + change * factor) == x;
  }
  NANHUNT_HOST_DEVICE bool leaves_only(float below, float x, float above, float change, float factor) const {
    return takes_to(x, x, change, factor) && !takes_to(above, x, change, factor) && !takes_to(below, x, change, factor);
  }
  NANHUNT_HOST_DEVICE void judge(std::int64_t i, UpdateTally& tally) const {
    const UpdateFormula& f = call.formula;
    const std::uint16_t code = static_cast<const std::uint16_t*>(call.self.data)[i];
    const float x = widened(code);
    const float a = call.a.data == nullptr ? 0 : load_flat<float>(call.a, i);
    const float b = call.b.data == nullptr ? 0 : load_flat<float>(call.b, i);
    const float change = update_change(f, a, b);
    // Weight decay alone is no update that was learnt.
    if (!is_finite_bits(x) || !is_finite_bits(change) || (f.kind != UpdateKind::kDecay && change == 0)) return;
    const double kept = static_cast<double>(x) * (static_cast<double>(f.keep) - 1);
    const double size = std::fabs(static_cast<double>(change) + kept);
    if (size == 0) return;
    ++tally.updates;
    tally.all_sizes += size;
    const unsigned magnitude = code & 0x7fffu, sign = code & 0x8000u;
    const float above = widened(static_cast<std::uint16_t>(sign | (magnitude + 1)));
    const float below =
        widened(static_cast<std::uint16_t>(magnitude == 0 ? (sign ^ 0x8000u) | 1 : sign | (magnitude - 1)));
    const bool lost = change_is_known(f, b) && leaves_only(below, x, above, change, 1 - f.slack) &&
                      (f.slack == 0 || leaves_only(below, x, above, change, 1 + f.slack));
    if (!lost) return;
    ++tally.lost;
    tally.lost_sizes += size;
  }
};

}  // namespace nanhunt::kernels::cuda
