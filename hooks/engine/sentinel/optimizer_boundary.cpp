// SPDX-License-Identifier: Apache-2.0
#include "hooks/engine/sentinel/optimizer_boundary.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace nanhunt::hooks {
namespace {

constexpr std::array<std::pair<OptimizerBoundary, std::string_view>, 3> kNames = {
    {{OptimizerBoundary::kAuto, "auto"}, {OptimizerBoundary::kSync, "sync"}, {OptimizerBoundary::kDeferred, "deferred"}}};

std::string megabytes(std::uint64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

}  // namespace

std::string_view boundary_name(OptimizerBoundary boundary) {
  for (const auto& [known, name] : kNames) {
    if (known == boundary) return name;
  }
  return "";
}

std::optional<OptimizerBoundary> parse_boundary(std::string_view name) {
  for (const auto& [boundary, known] : kNames) {
    if (known == name) return boundary;
  }
  return std::nullopt;
}

BoundaryPlan choose_boundary(const BoundaryFacts& facts) {
  BoundaryPlan plan;
  if (!facts.on_device) {
    plan.copies = facts.replays && facts.copy_bytes <= facts.close_bytes;
    return plan;
  }
  const bool fits = !facts.replays || facts.copy_bytes <= facts.copy_budget;
  std::string why;
  if (facts.wanted == OptimizerBoundary::kAuto && facts.scaler_reads) {
    plan.way = BoundaryPlan::Way::kScaler;
  } else if (facts.wanted != OptimizerBoundary::kSync && fits) {
    plan.way = BoundaryPlan::Way::kDeferred;
  } else {
    plan.way = BoundaryPlan::Way::kSync;
    if (facts.wanted != OptimizerBoundary::kSync) {
      why = fmt::format(
          ", because the copy of parameters and state that boundary deferred needs would take {}, and {} are allowed",
          megabytes(facts.copy_bytes), megabytes(facts.copy_budget));
    }
  }
  plan.copies = facts.replays && (plan.way == BoundaryPlan::Way::kDeferred || facts.copy_bytes <= facts.close_bytes);
  plan.bytes = plan.copies ? facts.copy_bytes : 0;
  switch (plan.way) {
    case BoundaryPlan::Way::kScaler:
      plan.text =
          "boundary scaler: the loss scaler's own read tells of bad gradients before the optimizer runs, all else is "
          "seen in the next step";
      break;
    case BoundaryPlan::Way::kDeferred:
      plan.text = "boundary deferred: no wait for the device, what goes bad in a step is seen in the next one";
      break;
    default:
      plan.text = "boundary sync: one wait for the device a step" + why +
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
