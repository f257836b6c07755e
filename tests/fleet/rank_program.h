// SPDX-License-Identifier: Apache-2.0
// A training loop of one rank, small enough to be recorded hundreds of times: one weight in fp16, its gradient reduced
// over the ranks of a group. What the others give is played; all that this rank computes is computed and recorded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/trace.h"
#include "src/fleet/digest.h"

namespace nanhunt::fleet_tests {

struct RankPlan {
  std::uint32_t steps = 6;
  // Steps at which ...
  std::optional<std::uint32_t> overflows = {};   // the product of this rank's own numbers passes 65504
  std::optional<std::uint32_t> flips = {};       // its weight changes in memory, and nothing wrote it
  std::optional<std::uint32_t> arrives = {};     // the reduction gives NaN, though this rank gave finite numbers
  std::optional<std::uint32_t> calibrates = {};  // its gradient overflows and a loss scaler skips the step
  std::optional<std::uint32_t> parts = {};       // its parameters begin to differ from those of its replicas
  std::vector<std::uint32_t> group = {0, 1};  // that reduces
  auto operator<=>(const RankPlan&) const = default;
};

// Where the rank stands among the others.
struct RankIdentity {
  std::uint32_t rank = 0, world_size = 1;
  std::map<std::string, std::int64_t> coordinates = {};
  std::string host = {};
  std::optional<fleet::Replicas> replicas = {};
};

// Trains and records into `run`. Returns the folder of the attempt.
std::string train_rank(const std::string& run, const RankIdentity& identity, const RankPlan& plan);

}  // namespace nanhunt::fleet_tests
