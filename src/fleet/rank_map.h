// SPDX-License-Identifier: Apache-2.0
// The map of steps x ranks: what each digest says of its steps, aggregated to a picture's worth of cells.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

// States of a cell, by how bad they are: of several the last counts.
enum class RankState : std::uint8_t {
  kMissing,  // no digest
  kOlder,    // a digest of another launch alone
  kDamaged,  // a digest that cannot be read
  kNothing,  // no step recorded
  kClean,    // through `clean_through`
  kAfter,    // after the first harm: a digest does not say more of these steps
  kWarning,  // an origin that did no harm
  kArrived,  // bad numbers came from another rank
  kParted,   // parameters that differ from those of other replicas
  kOrigin,   // a fault began
};
inline constexpr std::size_t kRankStates = 10;

struct RankStateWords {
  std::string_view name, meaning;
};
const RankStateWords& rank_state_words(RankState state);

inline constexpr std::size_t kMaxMapRanks = 65536, kMaxMapBands = 512, kMaxMapColumns = 512;

struct StateSpan {
  RankState state = RankState::kNothing;
  std::uint32_t from = 0, to = 0;  // steps, both included
};

struct MapRank {
  std::uint32_t rank = 0;
  const Digest* digest = nullptr;          // none: `absent` says why
  RankState absent = RankState::kMissing;  // or kOlder, kDamaged
  bool found = false;                      // one of those that the verdict names
  std::vector<StateSpan> spans;
};

// The places of the ranks along a dimension. The first grouping of a map is by rank: it has no values.
struct RankGrouping {
  std::string dimension;             // "rank", the name of a coordinate, "host"
  std::vector<std::string> values;   // ascending: numbers as numbers
  std::vector<std::uint32_t> value;  // of each rank of the map: index in `values`, or values.size(): not known
};

// Consecutive ranks of a grouping's order: by value, then by rank.
struct RankBand {
  std::uint32_t ranks = 0, found = 0, absent = 0;
};

struct BandedMap {
  std::vector<std::uint32_t> order;  // indices of RankMap::ranks
  std::vector<RankBand> bands;
  std::vector<RankState> cells;  // row by row: of each band RankMap::columns
};

// Points into the verdict that it was made from.
struct RankMap {
  std::vector<MapRank> ranks;  // ascending
  std::uint64_t omitted = 0;   // ranks past kMaxMapRanks
  std::uint32_t first_step = 0, last_step = 0, steps_per_column = 1;
  std::size_t columns = 0;  // 0: no step was recorded
  std::vector<RankGrouping> groupings;
  std::size_t first_grouping = 0;  // to be shown first: of more ranks than bands the one that shows the verdict's shape
  std::size_t column_of(std::uint32_t step) const { return (step - first_step) / steps_per_column; }
};

RankMap make_rank_map(const FleetVerdict& verdict);

// A band holds ranks of one value alone, or whole values where there are more of them than `most` bands.
BandedMap aggregate_ranks(const RankMap& map, std::size_t grouping, std::size_t most = kMaxMapBands);

}  // namespace nanhunt::fleet
