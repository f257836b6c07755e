// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/ranks/rank_propagation.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxChain = 64, kMaxChainsOfOthers = 3, kMaxSinkTexts = 256;

// From the call on, on the other rank.
void append_chain(Chain& chain, const Arrival& arrival, std::uint32_t rank) {
  const Chain& more = arrival.chain;
  if (chain.nodes.empty() || more.nodes.empty()) return;
  if (chain.nodes.size() + more.nodes.size() > kMaxChain) {
    chain.omitted += more.nodes.size();
    return;
  }
  for (ChainNode& node : chain.nodes) {
    if (!node.rank) node.rank = rank;
  }
  int from = 0;
  for (std::size_t i = 0; i < chain.nodes.size(); ++i) {
    const ChainNode& node = chain.nodes[i];
    if (*node.rank != rank || node.role == "sink") continue;
    from = static_cast<int>(i);
    if (arrival.seq != kNoSeq && node.seq == arrival.seq) break;
  }
  const int shift = static_cast<int>(chain.nodes.size());
  for (ChainNode node : more.nodes) {
    node.rank = arrival.rank;
    if (node.role == "origin") node.role = "carrier";
    if (chain.nodes.size() == static_cast<std::size_t>(shift)) node.lifecycle = Lifecycle::kPropagate;
    chain.nodes.push_back(std::move(node));
  }
  chain.edges.push_back({from, shift});
  for (const ChainEdge& edge : more.edges) chain.edges.push_back({edge.from + shift, edge.to + shift});
  chain.omitted += more.omitted;
}

}  // namespace

std::string ranks_text(const std::vector<std::uint32_t>& ranks) {
  std::vector<std::string> numbers;
  for (const std::uint32_t rank : ranks) numbers.push_back(std::to_string(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(numbers, 16);
}

void report_rank_propagation(Finding& f, const std::vector<Arrival>& arrivals, std::uint32_t rank) {
  // The first way to each rank.
  std::map<std::uint32_t, const Arrival*> first;
  for (const Arrival& arrival : arrivals) {
    const Arrival*& known = first[arrival.rank];
    if (known == nullptr || arrival.step < known->step) known = &arrival;
  }
  std::vector<std::uint32_t> unsure;
  for (const auto& [to, arrival] : first) {
    if (!arrival->sure) unsure.push_back(to);
    const auto same = std::find_if(f.rank_propagation.begin(), f.rank_propagation.end(), [&](const RankPropagation& propagation) {
      return propagation.through == arrival->through && propagation.group == arrival->group && propagation.step == arrival->step;
    });
    if (same != f.rank_propagation.end()) {
      same->ranks.push_back(to);
    } else {
      f.rank_propagation.push_back({{to}, arrival->through, arrival->group, arrival->step});
    }
  }
  std::stable_sort(f.rank_propagation.begin(), f.rank_propagation.end(),
                   [](const RankPropagation& a, const RankPropagation& b) { return a.step < b.step; });
  for (const RankPropagation& propagation : f.rank_propagation) {
    f.evidence.push_back(fmt::format("Born on rank {}; it came to {} through {}, step {}.", rank,
                                     ranks_text(propagation.ranks), propagation.through, propagation.step));
  }
  if (!unsure.empty()) {
    f.evidence.push_back(fmt::format("What {} gave in that step is not known apart: {} may have been bad by {} too.",
                                     ranks_text(unsure), unsure.size() == 1 ? "it" : "they",
                                     unsure.size() == 1 ? "itself" : "themselves"));
  }
  std::size_t chains = 0;
  std::set<std::uint32_t> shown;
  for (const Arrival& arrival : arrivals) {
    for (const std::string& sink : arrival.sinks) {
      if (std::find(f.sinks.begin(), f.sinks.end(), sink) != f.sinks.end()) continue;
      std::string text = fmt::format("{} on rank {}", sink, arrival.rank);
      const bool known = std::find(f.sinks.begin(), f.sinks.end(), text) != f.sinks.end();
      if (!known && f.sinks.size() < kMaxSinkTexts) f.sinks.push_back(std::move(text));
    }
    if (arrival.chain.nodes.empty() || !shown.insert(arrival.rank).second) continue;
    if (chains++ < kMaxChainsOfOthers) {
      append_chain(f.chain, arrival, rank);
    } else {
      f.chain.omitted += arrival.chain.nodes.size();
    }
  }
}

}  // namespace nanhunt::analyze
