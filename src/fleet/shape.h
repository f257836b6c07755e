// SPDX-License-Identifier: Apache-2.0
// What a set of ranks has in common: "all ranks of pipeline stage 3", not a list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/fleet/digest.h"

namespace nanhunt::fleet {

enum class ShapeKind : std::uint8_t {
  kNone,    // no rank
  kAll,     // all ranks
  kOne,     // one rank
  kGroup,   // the ranks with these places along these dimensions, or on these hosts
  kList,    // nothing that they have in common describes them
};
std::string_view shape_kind_name(ShapeKind kind);  // "all", "one", "group", "list"

// A place along a dimension: {"pipeline", "3"}, {"host", "n17"}.
struct Place {
  std::string dimension, value;
  bool operator==(const Place&) const = default;
  auto operator<=>(const Place&) const = default;
};

struct Shape {
  ShapeKind kind = ShapeKind::kNone;
  // Of a group. Different dimensions: ranks at all of them. Places of one dimension: ranks at any of them.
  std::vector<Place> places;
  std::vector<std::uint32_t> but;      // of the group, those that are not in the set
  std::vector<std::uint32_t> besides;  // of the set, those that are not in the group
  std::size_t ranks = 0, of = 0;       // in the set; in the group
  std::vector<std::vector<Place>> also;  // other groups of exactly the same ranks
};

// `ranks`: all that are known, ascending. `in`: whether each is in the set. The shortest description wins; a rank that it
// gets wrong must be named, which makes it longer.
Shape find_shape(const std::vector<Digest>& ranks, const std::vector<bool>& in);

// "all ranks of pipeline stage 3", "host n17", "rank 4711 alone"; `numbers`: the ranks of the set, ascending.
std::string shape_text(const Shape& shape, const std::vector<std::uint32_t>& numbers);
std::string places_text(const std::vector<Place>& places);

using RankRange = std::pair<std::uint32_t, std::uint32_t>;  // the first and the last of consecutive ranks
std::vector<RankRange> ranges_of(const std::vector<std::uint32_t>& ranks, std::size_t most);  // the first `most`
// "rank 3", "ranks 64, 102, 200-215 and 12 more"; `all`: how many ranks there are, in these ranges and past them.
std::string ranges_text(const std::vector<RankRange>& ranges, std::uint64_t all);

}  // namespace nanhunt::fleet
