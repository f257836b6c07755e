// SPDX-License-Identifier: Apache-2.0
// What the other ranks of a run say about one of them, found when all of them were read (comm_join.h): taken into
// account when its findings are made.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/call.h"
#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {

// A birth of this rank did harm on another one.
struct Arrival {
  std::uint32_t rank = 0;
  std::string through, group;      // as in RankPropagation
  std::uint32_t step = 0;
  std::uint64_t seq = kNoSeq;      // of the call, on this rank
  std::vector<std::string> sinks;  // there
  Chain chain;                     // there, from the call on
  bool sure = true;                // false: that rank may have been bad by itself too
};

struct RankVerdict {
  std::uint32_t rank = 0;
  std::set<BirthId> carried;  // births that are another rank's, or are told there
  std::map<BirthId, std::vector<Arrival>> arrivals;
  std::map<BirthId, CallStory> calls;
  std::set<std::size_t> carried_steps;     // riddles that are another rank's, by index (health_watch.h)
  std::vector<Finding> findings;           // further ones
  std::uint32_t carried_from = 0xFFFFFFFFu;  // first step in which this rank was harmed by another
};

}  // namespace nanhunt::analyze
