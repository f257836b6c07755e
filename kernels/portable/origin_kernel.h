// SPDX-License-Identifier: Apache-2.0
// Whether bad numbers began in an op, as a kernel of one element (lanes.h) or as one thread's part of another: from
// the statistics of its outputs and from what is known to be in its inputs. Where they were, each tensor gets room in
// the arena, and its gate opens for the histograms that are launched right behind. The arena is filled once: what has
// no room is not taken.
#pragma once

#include <cstdint>

#include "kernels/portable/host_device.h"
#include "kernels/origin_histograms.h"

namespace nanhunt::kernels::cuda {

// Memory of the device.
struct OriginMemory {
  const DeviceStatsRecord* records = nullptr;  // by slot
  const std::uint32_t* known = nullptr;        // by reference: kInfBits, kNanBits
  std::uint32_t* places = nullptr;             // of the launch behind, by tag: 1 + the tensor's number
  std::uint64_t* used = nullptr;               // words of the arena
  std::uint64_t words = 0;                     // that it has
};

struct OriginKernel {
  OriginPlan plan;
  OriginMemory memory;
  DeviceOrigins* found = nullptr;

  NANHUNT_HOST_DEVICE std::int64_t count() const { return 1; }
  NANHUNT_HOST_DEVICE void operator()(std::int64_t) const {
    const OriginCall& call = plan.call;
    std::uint32_t in = call.known_in;
    for (std::uint32_t i = 0; i < call.inputs; ++i) in |= memory.known[call.reference[i]];
    bool born = false;
    for (std::uint32_t i = 0; i < call.outputs; ++i) {
      const DeviceStatsRecord& made = memory.records[call.output[i]];
      born = born || (made.pos_inf + made.neg_inf != 0 && in == 0) || (made.nan != 0 && (in & kNanBits) == 0);
    }
    DeviceOrigins origins{};
    origins.born = born ? 1 : 0;
    for (std::uint32_t k = 0; k < call.tensors; ++k) {
      const bool fits = born && *memory.used + plan.words[k] <= memory.words;
      origins.place[k] = fits ? static_cast<std::uint32_t>(*memory.used + 1) : 0;
      origins.repeats[k] = plan.repeats[k];
      memory.places[k + 1] = origins.place[k];
      if (fits) *memory.used += plan.words[k];
    }
    *found = origins;
  }
};

}  // namespace nanhunt::kernels::cuda
