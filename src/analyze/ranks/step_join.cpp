// SPDX-License-Identifier: Apache-2.0
// Level sentinel: no row tells what the ranks exchanged. After a reduction of gradients every rank is bad; the replay
// of each, without the reduction, tells whose own share was.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "src/analyze/ranks/comm_join.h"

namespace nanhunt::analyze {
namespace {

using Riddle = SentinelWatch::Riddle;

struct Bad {
  std::size_t rank = 0, riddle = 0;  // indices
  const Riddle* what = nullptr;
};

Arrival arrival_at(std::uint32_t rank, std::uint32_t step, const Riddle& riddle) {
  Arrival arrival;
  arrival.rank = rank;
  arrival.through = "the reduction of gradients";
  arrival.step = step;
  arrival.sure = riddle.tried() && !riddle.local();
  return arrival;
}

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

class StepJoin {
 public:
  StepJoin(const std::vector<RankPass*>& ranks, std::uint32_t world, std::vector<RankVerdict>& verdicts)
      : ranks_(ranks), world_(world), verdicts_(verdicts) {}

  void join(std::uint32_t step, const std::vector<Bad>& bad) {
    std::vector<std::pair<std::size_t, BirthId>> origins;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (const Birth* birth = origin_in(*ranks_[i], verdicts_[i], step)) origins.emplace_back(i, birth->id);
    }
    std::vector<Bad> between;
    for (const Bad& one : bad) {
      const Arrival arrival = arrival_at(ranks_[one.rank]->rank(), step, *one.what);
      bool carried = false;
      if (one.what->tried() || !one.what->local()) {
        for (const auto& [i, birth] : origins) {
          if (i == one.rank) continue;
          verdicts_[i].arrivals[birth].push_back(arrival);
          carried = true;
        }
      }
      if (!carried && !one.what->local()) {
        for (const Bad& other : bad) {  // a loss belongs to its rank alone
          if (other.rank == one.rank || !other.what->local() || !other.what->tried()) continue;
          verdicts_[other.rank].steps[other.riddle].arrivals.push_back(arrival);
          carried = true;
        }
        if (!carried) between.push_back(one);
      }
      if (carried) carry(one, step);
    }
    report_between(step, between);
  }

 private:
  void carry(const Bad& one, std::uint32_t step) {
    RankVerdict& verdict = verdicts_[one.rank];
    verdict.steps[one.riddle].carried = true;
    verdict.carried_from = std::min(verdict.carried_from, step);
  }

  // Bad gradients on every one of these, and no share that is known to have been bad.
  void report_between(std::uint32_t step, const std::vector<Bad>& bad) {
    const auto lead = std::find_if(bad.begin(), bad.end(), [](const Bad& one) { return one.what->tried(); });
    if (lead == bad.end()) return;
    StepStory& story = verdicts_[lead->rank].steps[lead->riddle];
    story.between = true;
    for (const Bad& one : bad) {
      const std::uint32_t rank = ranks_[one.rank]->rank();
      (one.what->tried() ? story.replayed : story.unknown).push_back(rank);
      story.bad_on.push_back(rank);
      if (&one != &*lead) carry(one, step);
    }
    constexpr std::size_t kMaxNamed = 64;  // what run.json says is not believed without end
    if (world_ > ranks_.size()) {
      for (std::uint32_t rank = 0; rank < world_ && story.untraced.size() < kMaxNamed; ++rank) {
        const bool there =
            std::any_of(ranks_.begin(), ranks_.end(), [&](const RankPass* pass) { return pass->rank() == rank; });
        if (!there) story.untraced.push_back(rank);
      }
    }
  }

  const std::vector<RankPass*>& ranks_;
  std::uint32_t world_;
  std::vector<RankVerdict>& verdicts_;
};

}  // namespace

void join_steps(const std::vector<RankPass*>& ranks, std::uint32_t world, std::vector<RankVerdict>& verdicts) {
  if (std::max<std::size_t>(world, ranks.size()) < 2) return;
  std::map<std::uint32_t, std::vector<Bad>> steps;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::vector<Riddle>& riddles = ranks[i]->sentinel().riddles();
    for (std::size_t k = 0; k < riddles.size(); ++k) steps[riddles[k].first].push_back({i, k, &riddles[k]});
  }
  StepJoin join(ranks, world, verdicts);
  for (const auto& [step, bad] : steps) join.join(step, bad);
}

}  // namespace nanhunt::analyze
