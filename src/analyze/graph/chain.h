// SPDX-License-Identifier: Apache-2.0
// The graph of bad values, as far as it is needed to show how badness travelled from an origin to its first sinks.
// Bounded: nodes that no live value descends from are dropped, and past kMaxNodes new ones are only counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/graph/birth.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

struct BadNode {
  OpRef at;
  Lifecycle lifecycle = Lifecycle::kUnknown;
  BirthId birth = 0;  // not 0: this is where that birth happened
  std::int64_t nan = 0, pos_inf = 0, neg_inf = 0, numel = 0;
  std::uint32_t first_parent = 0, parents = 0;  // range of the parent pool
};

class BadGraph {
 public:
  static constexpr std::size_t kMaxNodes = 100000;

  // kNoNode when full.
  NodeId add(BadNode node, std::span<const NodeId> parents);
  std::size_t size() const { return nodes_.size(); }

  // Drops every node from which no root is reachable. Returns the new id of each old one.
  std::vector<NodeId> keep(const std::vector<NodeId>& roots);

  // Shortest ways from the birth to its first sink of each kind, and to what it gave to other ranks, merged; at most 64
  // nodes.
  Chain extract(const Birth& birth, const Names& names) const;

 private:
  std::vector<NodeId> path(NodeId from, BirthId birth) const;  // sink first, birth last; empty: not connected

  std::vector<BadNode> nodes_;
  std::vector<NodeId> parents_;
  std::uint64_t omitted_ = 0;
};

}  // namespace nanhunt::analyze
