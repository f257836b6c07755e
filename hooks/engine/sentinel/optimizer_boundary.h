// SPDX-License-Identifier: Apache-2.0
// How what goes bad on a device is learnt without, or with, waiting for it before an optimizer changes parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nanhunt::hooks {

enum class OptimizerBoundary : std::uint8_t {
  kAuto,  // the scaler's own read where there is one; else deferred where the copy fits, else sync
  kSync,  // wait for the device once a step: gradients are known before the optimizer runs
  kDeferred,  // wait for nothing: a step is judged in the next one, and replayed from a copy of parameters and state
};
std::string_view boundary_name(OptimizerBoundary boundary);  // "auto", "sync", "deferred"
std::optional<OptimizerBoundary> parse_boundary(std::string_view name);

struct BoundaryFacts {
  OptimizerBoundary wanted = OptimizerBoundary::kAuto;
  bool on_device = false;
  bool scaler_reads = false;        // a dynamic loss scaler reads its flag before the optimizer runs
  bool replays = true;              // without them no copy is needed
  std::uint64_t copy_bytes = 0;     // of parameters and optimizer state
  std::uint64_t copy_budget = 0;
  std::uint64_t close_bytes = 0;    // up to this much is copied at any optimizer boundary
};

struct BoundaryPlan {
  enum class Way : std::uint8_t { kFree, kScaler, kDeferred, kSync };
  Way way = Way::kFree;
  bool copies = false;        // parameters and state at the optimizer boundary
  std::uint64_t bytes = 0;    // of that copy
  std::string text = {};      // what it means for whoever reads the report; empty on the CPU
};
BoundaryPlan choose_boundary(const BoundaryFacts& facts);

}  // namespace nanhunt::hooks
