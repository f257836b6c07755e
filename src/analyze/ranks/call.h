// SPDX-License-Identifier: Apache-2.0
// What a rank does in a call between ranks.
#pragma once

#include <cstdint>
#include <optional>

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

}  // namespace nanhunt::analyze
