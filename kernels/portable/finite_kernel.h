// SPDX-License-Identifier: Apache-2.0
// Whether tensors without gaps are finite, as one kernel (block.h): a block for each work item. What it finds opens the
// gate of a launch behind it, which reads all of them; of each it leaves a record that says it is finite, as most are.
#pragma once

#include <cstdint>

#include "kernels/portable/block.h"
#include "kernels/portable/checksum_scan.h"
#include "kernels/portable/tensor_stats_kernel.h"

namespace nanhunt::kernels::cuda {

// Not 0: one of the numbers in these four bytes has all bits of its exponent set (e4m3fn: of its magnitude).
template <std::uint32_t kExponent, std::uint32_t kLowest, std::uint32_t kHighest>
NANHUNT_HOST_DEVICE constexpr std::uint32_t not_finite(std::uint32_t word) {
  const std::uint32_t missing = ~word & kExponent;  // of each number those bits that are not set: 0 where none is
  return (missing - kLowest) & ~missing & kHighest;
}
NANHUNT_HOST_DEVICE inline std::uint32_t not_finite(const Vector& v, DType dtype) {
  std::uint32_t found = 0;
  NANHUNT_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t word = v.words[i];
    switch (dtype) {
      case DType::kF64: found |= i % 2 == 1 ? not_finite<0x7ff00000u, 1u, 0x80000000u>(word) : 0; break;
      case DType::kF32: found |= not_finite<0x7f800000u, 1u, 0x80000000u>(word); break;
      case DType::kF16: found |= not_finite<0x7c007c00u, 0x00010001u, 0x80008000u>(word); break;
      case DType::kBF16: found |= not_finite<0x7f807f80u, 0x00010001u, 0x80008000u>(word); break;
      case DType::kE4M3FN: found |= not_finite<0x7f7f7f7fu, 0x01010101u, 0x80808080u>(word); break;
      case DType::kE5M2: found |= not_finite<0x7c7c7c7cu, 0x01010101u, 0x80808080u>(word); break;
      default: break;
    }
  }
  return found;
}

struct FiniteKernel {
  struct Shared {
    alignas(8) unsigned char work[sizeof(Work)];
  };

  DeviceStatsRecord* records;
  std::uint32_t* gates;
  std::uint32_t gate, next_gate;  // the one to open; and that of the next launch, which is closed here
  std::uint32_t all;              // records: of those behind the table's nothing is known
  StatsTable table;

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Work& work = *reinterpret_cast<Work*>(block.shared().work);
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      table.locate(thread.block, work);
      if (thread.block == 0) gates[next_gate] = 0;
      if (thread.block != work.first_item) return;
      DeviceStatsRecord record;
      record.count = work.view.count;
      record.dtype = work.view.dtype;
      records[work.slot] = record;
    });
    block.phase([&](const Thread& thread) {
      const DType dtype = work.view.dtype;
      std::uint32_t found = 0;
      const VectorsOfMemory vectors{work.view.data, work.view.count * element_bytes(dtype)};
      vectors.each(work.item, thread.index, [&](const Vector& v, std::uint64_t) { found |= not_finite(v, dtype); });
      if (found != 0) gates[gate] = 1;  // whoever comes first: all write the same
      if (thread.block != 0) return;
      for (std::uint32_t i = table.tensors + thread.index; i < all; i += thread.count) records[i] = DeviceStatsRecord{};
    });
  }
};
static_assert(sizeof(FiniteKernel) <= kParameterBytes);

// Gates are used in turn, from 1 on.
inline constexpr std::uint32_t kFiniteGates = 64;
constexpr std::uint32_t gate_after(std::uint32_t gate) { return gate + 1 < kFiniteGates ? gate + 1 : 1; }

}  // namespace nanhunt::kernels::cuda
