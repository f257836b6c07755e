// SPDX-License-Identifier: Apache-2.0
// How what goes bad on a device is learnt without, or with, waiting for it before an optimizer changes parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nanhunt::hooks {

enum class Door : std::uint8_t {
  kAuto,  // the scaler's own read where there is one; else late where the copy fits, else sync
  kSync,  // wait for the device once a step: gradients are known before the optimizer runs
  kLate,  // wait for nothing: a step is judged in the next one, and replayed from a copy of parameters and state
};
std::string_view door_name(Door door);  // "auto", "sync", "late"
std::optional<Door> parse_door(std::string_view name);

struct DoorFacts {
  Door wanted = Door::kAuto;
  bool on_device = false;
  bool scaler_reads = false;        // a dynamic loss scaler reads its flag before the optimizer runs
  bool replays = true;              // without them no copy is needed
  std::uint64_t copy_bytes = 0;     // of parameters and optimizer state
  std::uint64_t copy_budget = 0;
  std::uint64_t close_bytes = 0;    // up to this much is copied at any door
};

struct DoorPlan {
  enum class Way : std::uint8_t { kFree, kScaler, kLate, kSync };
  Way way = Way::kFree;
  bool copies = false;        // parameters and state at the door
  std::uint64_t bytes = 0;    // of that copy
  std::string text = {};      // what it means for whoever reads the report; empty on the CPU
};
DoorPlan choose_door(const DoorFacts& facts);

}  // namespace nanhunt::hooks
