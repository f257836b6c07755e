// SPDX-License-Identifier: Apache-2.0
// Calls between ranks: what a rank does in one, and what all of them together say of one that gave bad numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanhunt/trace.h"

namespace nanhunt::analyze {

inline bool is_root(const CollectiveRecord& call, std::optional<std::uint32_t> rank) {
  return call.peer < 0 || !rank || static_cast<std::uint32_t>(call.peer) == *rank;  // not known: taken for it
}

// Does this rank give the others numbers?
inline bool gives_share(const CollectiveRecord& call, std::optional<std::uint32_t> rank) {
  switch (call.kind) {
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
      return is_root(call, rank);
    case CollectiveKind::kRecv:
    case CollectiveKind::kBarrier:
      return false;
    default:
      return true;
  }
}

// Does it get a result?
inline bool gets_result(const CollectiveRecord& call, std::optional<std::uint32_t> rank) {
  switch (call.kind) {
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return is_root(call, rank);
    case CollectiveKind::kSend:
    case CollectiveKind::kBarrier:
      return false;
    default:
      return true;
  }
}

// A call between ranks that gave bad numbers although no rank is known to have given any.
struct CallStory {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Reduction reduction = Reduction::kNone;
  std::string group;
  std::vector<std::uint32_t> givers;    // ascending, as all below
  std::vector<std::uint32_t> unknown;   // of them, those whose share is not known
  std::vector<std::uint32_t> untraced;  // of these, those without a trace
  std::vector<std::uint32_t> bad_from;  // gave bad numbers, but where those began is not recorded
  std::vector<std::uint32_t> bad_on, fine_on;  // got the result
  double reach = 0;  // what the shares can come to together, at most; infinite: not known
  DType dtype = DType::kF32;
  bool lined_up = true;   // the ranks agree on what this call was
  bool can_pass = false;  // the shares together can pass the format
};

}  // namespace nanhunt::analyze
