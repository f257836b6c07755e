// SPDX-License-Identifier: Apache-2.0
// Which op is on which autocast list. An op that is on none runs in the types it is given.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "nanhunt/engine/amp.h"

namespace nanhunt::engine::amp {

enum class Policy : std::uint8_t {
  kLow,          // every argument to the region's 16-bit format
  kFp32,         // every argument to fp32
  kFp32Output,   // arguments as they are, result in fp32
  kAppendDtype,  // the same, for an op that torch re-dispatches to its form with a dtype
  kPromote,      // every argument to fp32 if one of them is, else to the 16-bit format
};

struct PolicyRow {
  std::string_view op;  // function in nanhunt/engine/ops.h
  Policy policy;
};

std::span<const PolicyRow> policy_table(CastLists lists = CastLists::kTorch);
std::span<const PolicyRow> apex_policy_table();
std::optional<Policy> policy_of(std::string_view op, CastLists lists = CastLists::kTorch);

}  // namespace nanhunt::engine::amp
