// SPDX-License-Identifier: Apache-2.0
// What single elements say of an op on a device: its first bad ones and the numbers that met in them, and how many
// results were lost to zero. PendingReading right after the output's statistics, which say whether there is anything to look
// for. Contract: kernels/CONTRACTS.md, findings of the device.
#pragma once

#include <cstdint>

#include "kernels/device_ops.h"
#include "kernels/device_stats.h"

namespace nanhunt::kernels {

inline constexpr int kMaxFoundInputs = 4;

// Arrays are of the device, or numbers. Inputs are those of which one element meets in each of the output's: they
// broadcast to the walk, which is the output's elements in row-major order.
struct EvidenceCall {
  std::uint32_t of = 0;  // which tensor of the reading is its output
  Walk walk;
  DeviceArray out;
  int inputs = 0;
  DeviceArray in[kMaxFoundInputs];
  // A 0 of the output is a lost value where these hold of the inputs at its place. Bit k: of input k.
  bool counts_flushed = false;
  std::uint8_t must_be_nonzero = 0, must_not_be_inf = 0;
};

// What one call leaves. As large as a record of statistics, so that both lie in the same slots.
struct DeviceEvidence {
  std::uint64_t first_inf = kNoIndex, first_nan = kNoIndex;  // row-major places in the output
  std::uint64_t flushed = 0;
  // There: the output's number, then the inputs'.
  double at_inf[1 + kMaxFoundInputs] = {}, at_nan[1 + kMaxFoundInputs] = {};
};
static_assert(sizeof(DeviceEvidence) == sizeof(DeviceStatsRecord));

// What an optimizer's op means to do with an element: self becomes round(self * keep + change) in 16 bits, the change
// computed in fp32 from up to three operands (src/record/lost_updates).
enum class UpdateKind : std::uint8_t {
  kScaled,    // factor * a
  kQuotient,  // factor * a / b
  kDecay,     // no change but `keep`
  kSgd,       // factor * b, or Nesterov's a + momentum * b where that is larger
  kAdam,      // factor * a / (sqrt(b) / correction + eps)
};
struct UpdateFormula {
  UpdateKind kind = UpdateKind::kScaled;
  float keep = 1, factor = 1, momentum = 0;
  float correction = 1, eps = 0;  // adam
  float slack = 0;                // the change may be off by this share of it
  double smallest_square = 0;     // adam: below it a stored second moment says too little
};

// Updates that left elements as they were, of arrays without gaps: self in fp16 or bf16, a and b in these or fp32.
struct UpdatesCall {
  UpdateFormula formula;
  std::int64_t count = 0;
  DeviceArray self, a, b;  // data nullptr: not used
};
struct DeviceUpdates {
  std::uint64_t updates = 0;  // elements whose change is not 0 and finite
  std::uint64_t lost = 0;     // of them certainly unchanged
  double all_sizes = 0, lost_sizes = 0;
  std::uint64_t unused[9] = {};
};
static_assert(sizeof(DeviceUpdates) == sizeof(DeviceStatsRecord));

}  // namespace nanhunt::kernels
