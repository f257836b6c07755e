// SPDX-License-Identifier: Apache-2.0
// Findings of an op (element_evidence.h) as one kernel (block.h): it looks at the elements where the statistics say that
// there is something to find, and its last block reads the numbers that met. Nothing depends on an order: places are
// the smallest, counts are counts. One of its threads may decide on the op's origins (origin_kernel.h), which go by the
// same statistics.
#pragma once

#include <cstdint>

#include "kernels/portable/arrays.h"
#include "kernels/portable/origin_kernel.h"
#include "kernels/portable/block.h"
#include "kernels/portable/host_device.h"
#include "kernels/element_evidence.h"

namespace nanhunt::kernels::cuda {

NANHUNT_HOST_DEVICE inline std::uint64_t magnitude_bits(double value) {
  return bits_as<std::uint64_t>(value) & 0x7fff'ffff'ffff'ffffu;
}
NANHUNT_HOST_DEVICE inline bool is_inf_bits(double value) { return magnitude_bits(value) == 0x7ff0'0000'0000'0000u; }
NANHUNT_HOST_DEVICE inline bool is_nan_bits(double value) { return magnitude_bits(value) > 0x7ff0'0000'0000'0000u; }

// `at` becomes the smaller of both.
NANHUNT_HOST_DEVICE inline void atomic_lower(std::uint64_t* at, std::uint64_t value) {
#if NANHUNT_ON_DEVICE
  atomicMin(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  std::uint64_t seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(at, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
#endif
}

// Memory of the device, left as it was found.
struct EvidenceSoFar {
  std::uint64_t first_inf, first_nan;  // kNoIndex
  std::uint64_t flushed;               // 0
  std::uint32_t tickets, unused;       // 0
};
inline constexpr EvidenceSoFar kNoEvidence = {kNoIndex, kNoIndex, 0, 0, 0};

struct EvidenceKernel {
  static constexpr std::uint32_t kThreads = 256, kMostBlocks = 1024;
  struct Shared {
    std::uint32_t is_last;
  };
  EvidenceCall call;
  const DeviceStatsRecord* output;  // the statistics of call.out
  EvidenceSoFar* so_far;
  DeviceEvidence* found;
  OriginKernel origins{};  // where `found` is not null

  NANHUNT_HOST_DEVICE std::uint32_t blocks() const {
    const std::int64_t wanted = (call.walk.count + kThreads - 1) / kThreads;
    return wanted < 1 ? 1 : wanted > kMostBlocks ? kMostBlocks : static_cast<std::uint32_t>(wanted);
  }

  template <class Block>
  NANHUNT_HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared();
    const bool zeros = call.counts_flushed && output->zero != 0;
    const bool nothing = output->first == kNoIndex && !zeros;
    block.phase([&](const Thread& thread) {
      if (thread.global_index() != 0) return;
      if (origins.found != nullptr) origins(0);
      if (nothing) *found = DeviceEvidence{};
    });
    if (nothing) return;
    block.phase([&](const Thread& thread) {
      const auto count = static_cast<std::uint64_t>(call.walk.count);
      for (std::uint64_t i = thread.global_index(); i < count; i += thread.global_count()) look_at(i, zeros);
    });
    block.phase([&](const Thread& thread) {
      if (thread.index != 0) return;
      shared.is_last = draw_ticket(&so_far->tickets, block.count()) == block.count() - 1 ? 1 : 0;
    });
    if (shared.is_last == 0) return;
    block.phase([&](const Thread& thread) {
      if (thread.index == 0) leave();
    });
  }

 private:
  NANHUNT_HOST_DEVICE void look_at(std::uint64_t i, bool zeros) const {
    const Place place = place_of(call.walk, static_cast<std::int64_t>(i));
    const double made = load<double>(call.out, place);
    if (is_inf_bits(made)) atomic_lower(&so_far->first_inf, i);
    if (is_nan_bits(made)) atomic_lower(&so_far->first_nan, i);
    if (zeros && magnitude_bits(made) == 0 && is_lost(place)) atomic_add(&so_far->flushed, std::uint64_t{1});
  }

  NANHUNT_HOST_DEVICE bool is_lost(const Place& place) const {
    for (int k = 0; k < call.inputs; ++k) {
      const unsigned bit = 1u << k;
      if (((call.must_be_nonzero | call.must_not_be_inf) & bit) == 0) continue;
      const double number = load<double>(call.in[k], place);
      if ((call.must_be_nonzero & bit) != 0 && magnitude_bits(number) == 0) return false;
      if ((call.must_not_be_inf & bit) != 0 && is_inf_bits(number)) return false;
    }
    return true;
  }

  NANHUNT_HOST_DEVICE void leave() const {
    DeviceEvidence all;
    all.first_inf = load_fresh(&so_far->first_inf);
    all.first_nan = load_fresh(&so_far->first_nan);
    all.flushed = load_fresh(&so_far->flushed);
    so_far->first_inf = so_far->first_nan = kNoIndex;
    so_far->flushed = 0;
    read(all.first_inf, all.at_inf);
    read(all.first_nan, all.at_nan);
    *found = all;
  }
  NANHUNT_HOST_DEVICE void read(std::uint64_t at, double* numbers) const {
    if (at == kNoIndex) return;
    const Place place = place_of(call.walk, static_cast<std::int64_t>(at));
    numbers[0] = load<double>(call.out, place);
    for (int k = 0; k < call.inputs; ++k) numbers[1 + k] = load<double>(call.in[k], place);
  }
};

}  // namespace nanhunt::kernels::cuda
