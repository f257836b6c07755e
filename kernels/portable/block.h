// SPDX-License-Identifier: Apache-2.0
// How kernels are written so that tests run the very same code on a CPU. A kernel is a trivially copyable struct (its
// arguments) with
//
//   struct Shared { ... };                          // one per block; not initialised
//   template <class Block>
//   NANHUNT_HOST_DEVICE void operator()(Block& block) const;
//
// Its body is a row of phases. A phase is done by every thread of the block, in no order, and ends in a barrier; what
// a thread has to remember from one phase to the next stands in Registers. Phases are reached by all threads of a
// block or by none. What Block offers (device: device_block.h; CPU: tests/support/emulated_grid.h):
//
//   block.index(), block.count()              // this block, of how many
//   typename Block::template Registers<T> r;  // a T for each thread, not initialised
//   block.phase([&](const Thread& thread) {...});
//   block.phase(r, [&](const Thread& thread, T& mine) {...});
//   block.phase(r, q, [&](const Thread& thread, T& mine, U& other) {...});
//   block.fold_warps(r, [](T& into, const T& from) {...});  // in each warp: lane i takes in lane i+16, then i+8, +4,
//                                                           // +2, +1: lane 0 ends with all, in this order always
//   block.shared()                            // Kernel::Shared&
//
// Conditions around phases may depend on shared memory written in an earlier phase, and on the arguments.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"

namespace nanhunt::kernels::cuda {

inline constexpr std::uint32_t kWarpLanes = 32;

struct Thread {
  std::uint32_t index = 0;   // in its block
  std::uint32_t count = 0;   // threads of a block: a multiple of kWarpLanes
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;

  NANHUNT_HOST_DEVICE std::uint32_t lane() const { return index % kWarpLanes; }
  NANHUNT_HOST_DEVICE std::uint32_t warp() const { return index / kWarpLanes; }
  // In the whole grid, for loops `for (i = thread.global_index(); i < n; i += thread.global_count())`.
  NANHUNT_HOST_DEVICE std::uint64_t global_index() const { return std::uint64_t{block} * count + index; }
  NANHUNT_HOST_DEVICE std::uint64_t global_count() const { return std::uint64_t{blocks} * count; }
};

// A word that other blocks of this launch wrote.
NANHUNT_HOST_DEVICE inline std::uint64_t load_fresh(const std::uint64_t* at) {
#if NANHUNT_ON_DEVICE
  return __ldcg(reinterpret_cast<const unsigned long long*>(at));
#else
  return __atomic_load_n(at, __ATOMIC_RELAXED);
#endif
}

// For kernels that share nothing.
struct NoShared {};

}  // namespace nanhunt::kernels::cuda
