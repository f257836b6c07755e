// SPDX-License-Identifier: Apache-2.0
// Histograms of what went into an op on a device and what came out of it, where bad numbers began in it and nowhere
// else. Contract: kernels/CONTRACTS.md, origins of the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device_stats.h"

namespace nanhunt::kernels {

inline constexpr std::uint32_t kMaxOriginTensors = 8, kMaxOriginInputs = 16;
inline constexpr std::uint32_t kInfBits = 1, kNanBits = 2;  // what is known to be in contents

// Tensors are numbers of those of a reading with references; with kShownOnly, of those that it shows and does not read.
inline constexpr std::uint32_t kShownOnly = std::uint32_t{1} << 31;
struct OriginCall {
  std::uint32_t tensors = 0, tensor[kMaxOriginTensors] = {};    // histograms are wanted of
  std::uint32_t outputs = 0, output[kMaxOriginTensors] = {};    // that are new
  std::uint32_t inputs = 0, reference[kMaxOriginInputs] = {};   // whose numbers mix into them
  std::uint32_t known_in = 0;                                  // of other inputs: kInfBits, kNanBits
  std::uint32_t decided_by = ~std::uint32_t{0};                // the call for elements whose launch decides as well
};

// The same for a launch: tensors as they are walked, outputs as slots.
struct OriginPlan {
  OriginCall call;
  std::uint32_t words[kMaxOriginTensors] = {};  // that the result takes
  std::int64_t repeats[kMaxOriginTensors] = {};
};

// What one call leaves. As large as a record of statistics, so that both lie in the same slots.
struct DeviceOrigins {
  // 1 + its word in the arena: a DeviceStatsRecord, then details; 0: not taken
  std::uint32_t place[kMaxOriginTensors] = {};
  std::int64_t repeats[kMaxOriginTensors] = {};
  std::uint32_t born = 0, unused = 0;
};
static_assert(sizeof(DeviceOrigins) == sizeof(DeviceStatsRecord));

inline constexpr std::uint32_t kStatsRecordWords = sizeof(DeviceStatsRecord) / sizeof(std::uint64_t);

}  // namespace nanhunt::kernels
