// SPDX-License-Identifier: Apache-2.0
// A training run in whose memory a bit flips, told to nobody.
#pragma once

#include <cstdint>
#include <string>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/analyzer.h"
#include "nanhunt/engine/tensor.h"

namespace nanhunt::testing_support {

inline constexpr std::uint32_t kFlipStep = 5;

struct FlippedRun {
  Analysis analysis;
  std::string parameter;   // whose bit was flipped
  std::string op, module;  // that made what was flipped
  RecorderCounters counters;
};
enum class Where : std::uint8_t { kNowhere, kParameter, kIntermediate };
struct FlipOptions {
  engine::Device device = {};
  hooks::DeviceStats device_stats = hooks::DeviceStats::kSync;
};

FlippedRun train_flipped(Where where, const FlipOptions& options = {});

}  // namespace nanhunt::testing_support
