// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/door.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace nanhunt::hooks {
namespace {

constexpr std::array<std::pair<Door, std::string_view>, 3> kNames = {
    {{Door::kAuto, "auto"}, {Door::kSync, "sync"}, {Door::kLate, "late"}}};

std::string megabytes(std::uint64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

}  // namespace

std::string_view door_name(Door door) {
  for (const auto& [known, name] : kNames) {
    if (known == door) return name;
  }
  return "";
}

std::optional<Door> parse_door(std::string_view name) {
  for (const auto& [door, known] : kNames) {
    if (known == name) return door;
  }
  return std::nullopt;
}

DoorPlan choose_door(const DoorFacts& facts) {
  DoorPlan plan;
  if (!facts.on_device) return plan;
  const bool fits = !facts.replays || facts.copy_bytes <= facts.copy_budget;
  std::string why;
  if (facts.wanted == Door::kAuto && facts.scaler_reads) {
    plan.way = DoorPlan::Way::kScaler;
  } else if (facts.wanted != Door::kSync && fits) {
    plan.way = DoorPlan::Way::kLate;
  } else {
    plan.way = DoorPlan::Way::kSync;
    if (facts.wanted != Door::kSync) {
      why = fmt::format(
          ", because the copy of parameters and state that door late needs would take {}, and {} are allowed",
          megabytes(facts.copy_bytes), megabytes(facts.copy_budget));
    }
  }
  plan.copies = facts.replays && (plan.way == DoorPlan::Way::kLate || facts.copy_bytes <= facts.close_bytes);
  plan.bytes = plan.copies ? facts.copy_bytes : 0;
  switch (plan.way) {
    case DoorPlan::Way::kScaler:
      plan.text =
          "door scaler: the loss scaler's own read tells of bad gradients before the optimizer runs, all else is "
          "seen in the next step";
      break;
    case DoorPlan::Way::kLate:
      plan.text = "door late: no wait for the device, what goes bad in a step is seen in the next one";
      break;
    default:
      plan.text = "door sync: one wait for the device a step" + why +
                  "; what the optimizer leaves bad is seen in the next step";
      break;
  }
  plan.text +=
      plan.copies     ? fmt::format("; {} of the device hold a copy of parameters and state", megabytes(plan.bytes))
      : facts.replays ? "; no copy of parameters and state is kept, so a step whose optimizer left them bad is not "
                        "replayed"
                      : "; nothing is replayed";
  return plan;
}

}  // namespace nanhunt::hooks
