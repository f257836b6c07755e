// SPDX-License-Identifier: Apache-2.0
// After a reduction of gradients every rank is bad. Of a rank whose ops are not known, what another one made answers.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "src/analyze/ranks/comm_join.h"

namespace nanhunt::analyze {
namespace {

using Riddle = HealthWatch::Riddle;

// The first birth that harmed this rank in this step.
const Birth* origin_in(RankPass& pass, const RankVerdict& verdict, std::uint32_t step) {
  const Birth* first = nullptr;
  const auto key = [](const Birth& b) {
    return std::tuple(b.events.first(), b.kind == BirthKind::kOp ? 1 : 0, b.at.seq, b.id);
  };
  for (const Birth* birth : pass.graph().origins()) {
    if (verdict.carried.contains(birth->id) || !birth->events.contains(step)) continue;
    if (first == nullptr || key(*birth) < key(*first)) first = birth;
  }
  return first;
}

}  // namespace

void join_steps(const std::vector<RankPass*>& ranks, std::vector<RankVerdict>& verdicts) {
  std::map<std::pair<std::size_t, std::uint32_t>, const Birth*> origins;  // by rank's index and step
  const auto origin_of = [&](std::size_t i, std::uint32_t step) {
    const auto [at, is_new] = origins.try_emplace({i, step}, nullptr);
    if (is_new) at->second = origin_in(*ranks[i], verdicts[i], step);
    return at->second;
  };
  for (std::size_t at = 0; at < ranks.size(); ++at) {
    const std::vector<Riddle>& riddles = ranks[at]->health().riddles();
    for (std::size_t k = 0; k < riddles.size(); ++k) {
      if (riddles[k].local()) continue;  // a loss belongs to its rank alone
      const std::uint32_t step = riddles[k].first;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const Birth* origin = i == at ? nullptr : origin_of(i, step);
        if (origin == nullptr) continue;
        Arrival arrival;
        arrival.rank = ranks[at]->rank();
        arrival.through = "the reduction of gradients";
        arrival.step = step;
        arrival.sure = false;
        verdicts[i].arrivals[origin->id].push_back(std::move(arrival));
        verdicts[at].carried_steps.insert(k);
        verdicts[at].carried_from = std::min(verdicts[at].carried_from, step);
      }
    }
  }
}

}  // namespace nanhunt::analyze
