// SPDX-License-Identifier: Apache-2.0
// Replicas whose parameters part before anything is NaN or Inf: a finding of its own, for no operation shows it.
#include <algorithm>
#include <utility>

#include "src/analyze/ranks/comm_join.h"
#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/ranks/replicas.h"
#include "src/analyze/wording/advice.h"

namespace nanhunt::analyze {
namespace {

// Did something harmful begin up to this step, of which the parting may be a consequence?
bool is_bad_until(RankPass& pass, std::uint32_t step) {
  for (const Birth* birth : pass.graph().origins()) {
    if (birth->harmful && !birth->events.empty() && birth->events.first() <= step) return true;
  }
  const auto& riddles = pass.health().riddles();
  return std::any_of(riddles.begin(), riddles.end(), [&](const HealthWatch::Riddle& riddle) { return riddle.first <= step; });
}

Finding finding_of(const Parting& parting) {
  Finding f;
  f.cls = parting.equal_until ? FindingClass::kCorruption : FindingClass::kApiMisuse;
  f.ranks = parting.minority.empty() ? parting.seen : parting.minority;
  f.rank = f.ranks.front();
  f.place.step = f.first_step = f.last_step = parting.step;
  f.place.phase = Phase::kOptimizer;
  f.title = parting_text(parting);
  f.confidence = Confidence::kInferred;  // what changed them was not seen
  f.evidence = parting_notes(parting, ranks_text(f.ranks));
  f.explanation = std::move(f.evidence.back());
  f.evidence.pop_back();
  f.advice = {make_advice(parting.equal_until ? "check-memory" : "broadcast-parameters")};
  return f;
}

}  // namespace

void join_replicas(const std::vector<RankPass*>& ranks, std::vector<RankVerdict>& verdicts) {
  std::vector<ReplicaFacts> facts;
  for (const RankPass* pass : ranks) facts.push_back({pass->rank(), pass->replicas().replicas(), pass->replicas().checksums()});
  const std::vector<Parting> partings = find_partings(facts);
  if (partings.empty()) return;
  for (RankPass* pass : ranks) {
    if (is_bad_until(*pass, partings.front().step)) return;
  }
  const Finding finding = finding_of(partings.front());
  const auto own = std::find_if(verdicts.begin(), verdicts.end(), [&](const RankVerdict& one) { return one.rank == finding.rank; });
  if (own != verdicts.end()) own->findings.push_back(finding);
}

}  // namespace nanhunt::analyze
