// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/chain.h"

#include <algorithm>
#include <array>
#include <optional>

#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxChain = 64;  // nodes shown
constexpr std::size_t kMaxSinksShown = 4;
constexpr std::size_t kMaxParents = 1u << 20;

ChainNode shown(const BadNode& node, const Names& names) {
  ChainNode out;
  out.seq = node.at.seq;
  out.step = node.at.step;
  out.phase = node.at.phase;
  out.module = names.text(node.at.module);
  out.op = names.text(node.at.op);
  out.lifecycle = node.lifecycle;
  out.nan = node.nan;
  out.pos_inf = node.pos_inf;
  out.neg_inf = node.neg_inf;
  out.numel = node.numel;
  out.role = node.birth != 0 ? "origin" : "carrier";
  out.label = place_text(node.at, names) + ": " + bad_count_text(node.nan, node.pos_inf, node.neg_inf, node.numel);
  return out;
}

const char* sink_op(TensorRole kind) {
  switch (kind) {
    case TensorRole::kLoss:
      return "<loss>";
    case TensorRole::kBoundaryGradient:
      return "<gradient>";
    case TensorRole::kParameter:
      return "<parameter>";
    case TensorRole::kState:
      return "<state>";
    case TensorRole::kBuffer:
      return "<buffer>";
    case TensorRole::kOutput:
      return "<output>";
    default:
      return "<batch>";
  }
}

// `maker`: the phase in which its numbers were made, where that is known.
Phase phase_of(TensorRole sink, std::optional<Phase> maker) {
  switch (sink) {
    case TensorRole::kLoss:
      return Phase::kLoss;
    case TensorRole::kBoundaryGradient: {  // the program may have made it bad after backward
      const bool after = maker == Phase::kComm || maker == Phase::kUnscale || maker == Phase::kClip;
      return after ? *maker : Phase::kBackward;
    }
    case TensorRole::kBuffer:
      return Phase::kForward;
    case TensorRole::kOutput:
      return maker.value_or(Phase::kForward);
    default:
      return Phase::kOptimizer;
  }
}

ChainNode shown(const SinkHit& sink, std::uint32_t step, const Names& names, std::optional<Phase> maker) {
  ChainNode out;
  out.step = step;
  out.phase = phase_of(sink.kind, maker);
  out.module = names.text(sink.path);
  out.op = sink_op(sink.kind);
  out.lifecycle = Lifecycle::kPropagate;
  out.nan = sink.stats.nan;
  out.pos_inf = sink.stats.pos_inf;
  out.neg_inf = sink.stats.neg_inf;
  out.numel = sink.stats.numel;
  out.role = "sink";
  out.label = sink_text(sink.kind, out.module) + ": " + bad_count_text(out.nan, out.pos_inf, out.neg_inf, out.numel);
  return out;
}

// The first sink of each kind, in the order they were reached.
std::vector<const SinkHit*> sinks_to_show(const Birth& birth) {
  std::vector<const SinkHit*> chosen;
  std::array<bool, 8> seen{};
  for (const SinkHit& sink : birth.sinks) {
    bool& kind_seen = seen[static_cast<std::size_t>(sink.kind) & 7];
    if (kind_seen || chosen.size() >= kMaxSinksShown) continue;
    kind_seen = true;
    chosen.push_back(&sink);
  }
  return chosen;
}

}  // namespace

NodeId BadGraph::add(BadNode node, std::span<const NodeId> parents) {
  if (nodes_.size() >= kMaxNodes || parents_.size() + parents.size() > kMaxParents) {
    ++omitted_;
    return kNoNode;
  }
  node.first_parent = static_cast<std::uint32_t>(parents_.size());
  for (NodeId parent : parents) {
    if (parent != kNoNode) parents_.push_back(parent);
  }
  node.parents = static_cast<std::uint32_t>(parents_.size()) - node.first_parent;
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

std::vector<NodeId> BadGraph::keep(const std::vector<NodeId>& roots) {
  std::vector<bool> marked(nodes_.size(), false);
  for (NodeId root : roots) {
    if (root != kNoNode) marked[root] = true;
  }
  // Parents come before children, so one pass downwards marks everything above the roots.
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    if (!marked[i]) continue;
    for (std::uint32_t p = 0; p < nodes_[i].parents; ++p) marked[parents_[nodes_[i].first_parent + p]] = true;
  }
  std::vector<NodeId> new_ids(nodes_.size(), kNoNode);
  std::vector<BadNode> nodes;
  std::vector<NodeId> pool;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!marked[i]) continue;
    new_ids[i] = static_cast<NodeId>(nodes.size());
    BadNode node = nodes_[i];
    const std::uint32_t first = static_cast<std::uint32_t>(pool.size());
    for (std::uint32_t p = 0; p < node.parents; ++p) pool.push_back(new_ids[parents_[node.first_parent + p]]);
    node.first_parent = first;
    nodes.push_back(node);
  }
  nodes_ = std::move(nodes);
  parents_ = std::move(pool);
  return new_ids;
}

std::vector<NodeId> BadGraph::path(NodeId from, BirthId birth) const {
  if (from == kNoNode) return {};
  std::vector<std::pair<NodeId, std::int32_t>> queue = {{from, -1}};  // node, index of the one it was reached from
  std::vector<bool> seen(nodes_.size(), false);
  seen[from] = true;
  for (std::size_t i = 0; i < queue.size(); ++i) {
    const NodeId id = queue[i].first;
    if (nodes_[id].birth == birth) {
      std::vector<NodeId> way;
      for (auto at = static_cast<std::int32_t>(i); at >= 0; at = queue[static_cast<std::size_t>(at)].second) {
        way.push_back(queue[static_cast<std::size_t>(at)].first);
      }
      std::reverse(way.begin(), way.end());
      return way;
    }
    for (std::uint32_t p = 0; p < nodes_[id].parents; ++p) {
      const NodeId parent = parents_[nodes_[id].first_parent + p];
      if (seen[parent]) continue;
      seen[parent] = true;
      queue.emplace_back(parent, static_cast<std::int32_t>(i));
    }
  }
  return {};
}

Chain BadGraph::extract(const Birth& birth, const Names& names) const {
  struct Way {
    const SinkHit* sink;
    std::vector<NodeId> nodes;
  };
  std::vector<Way> ways;
  std::vector<NodeId> ids;
  if (birth.node != kNoNode) ids.push_back(birth.node);
  for (const SinkHit* sink : sinks_to_show(birth)) {
    ways.push_back({sink, path(sink->node, birth.id)});
    ids.insert(ids.end(), ways.back().nodes.begin(), ways.back().nodes.end());
  }
  if (birth.sent != nullptr && birth.sent->node != kNoNode) {
    ways.push_back({nullptr, path(birth.sent->node, birth.id)});
    ids.insert(ids.end(), ways.back().nodes.begin(), ways.back().nodes.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());

  // Too long: the origin, the sinks' makers and whatever changed kind stay, then the nearest to the origin.
  Chain chain;
  const std::size_t room = kMaxChain - ways.size();
  std::vector<NodeId> kept = ids;
  if (ids.size() > room) {
    auto must_stay = [&](NodeId id) {
      return id == birth.node || nodes_[id].lifecycle != Lifecycle::kPropagate ||
             std::any_of(ways.begin(), ways.end(),
                         [&](const Way& way) { return !way.nodes.empty() && way.nodes.front() == id; });
    };
    std::stable_partition(kept.begin(), kept.end(), must_stay);
    kept.resize(room);
    std::sort(kept.begin(), kept.end());
    chain.omitted = ids.size() - kept.size();
  }
  auto index_of = [&](NodeId id) {
    const auto it = std::lower_bound(kept.begin(), kept.end(), id);
    return it != kept.end() && *it == id ? static_cast<int>(it - kept.begin()) : -1;
  };
  for (NodeId id : kept) {
    chain.nodes.push_back(shown(nodes_[id], names));
    if (id != birth.node) {
      chain.nodes.back().role = "carrier";
    } else if (birth.kind == BirthKind::kBatch || birth.kind == BirthKind::kState) {
      const ValueStats& s = birth.source.stats;
      chain.nodes.back().label = sink_text(birth.role, names.text(birth.source.name)) + ": " +
                                 bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel);
    }
  }
  auto link = [&](int from, int to) {
    const bool there = std::any_of(chain.edges.begin(), chain.edges.end(),
                                   [&](const ChainEdge& edge) { return edge.from == from && edge.to == to; });
    if (from >= 0 && to >= 0 && from != to && !there) chain.edges.push_back({from, to});
  };
  for (const Way& way : ways) {
    int last = birth.node == kNoNode ? -1 : index_of(birth.node);
    for (std::size_t i = way.nodes.size(); i-- > 0;) {  // from the origin to the sink
      const int at = index_of(way.nodes[i]);
      if (at < 0) continue;
      link(last, at);
      last = at;
    }
    if (way.sink == nullptr) continue;
    const std::optional<Phase> maker =
        way.sink->node == kNoNode ? std::nullopt : std::optional(nodes_[way.sink->node].at.phase);
    chain.nodes.push_back(shown(*way.sink, birth.events.first(), names, maker));
    link(last, static_cast<int>(chain.nodes.size()) - 1);
  }
  return chain;
}

}  // namespace nanhunt::analyze
