// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/ranks/comm_join.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "src/analyze/wording/advice.h"
#include "src/analyze/ranks/rank_propagation.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::size_t kMaxLost = 16;  // findings about a lost NaN, of one rank

using At = std::pair<std::size_t, BirthId>;  // index of the rank, birth

// One call with what is known of it on each rank.
struct Meeting {
  const CommStream* stream = nullptr;
  std::uint64_t call = 0;
  std::map<std::size_t, const CallFacts*> facts;  // by index of the rank
  bool lined_up = true;                           // the ranks agree on what it was
  const CallFacts& any() const { return *facts.begin()->second; }
};

enum class State : std::uint8_t { kFinite, kBad, kUnknown };

class Join {
 public:
  Join(const std::vector<RankPass*>& ranks, std::vector<RankVerdict>& verdicts) : ranks_(ranks), verdicts_(verdicts) {
    for (std::size_t i = 0; i < ranks.size(); ++i) index_.emplace(ranks[i]->rank(), i);
  }

  void run() {
    meet();
    // Twice: a birth may be known to have done harm only once the harm it did elsewhere is.
    for (int round = 0; round < 2; ++round) {
      for (const auto& [at, meeting] : born_at_) follow(at, *meeting);
    }
    for (const auto& [stream, calls] : meetings_) {
      for (const auto& [call, meeting] : calls) find_lost(meeting);
    }
  }

 private:
  void meet() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      for (const auto& [stream, calls] : ranks_[i]->comm().streams()) {
        auto& there = *meetings_.try_emplace(stream).first;
        for (const auto& [call, facts] : calls.facts) {
          Meeting& meeting = there.second[call];
          meeting.stream = &there.first;
          meeting.call = call;
          if (!meeting.facts.empty() && stream.from < 0) {
            const CallFacts& first = meeting.any();
            meeting.lined_up = meeting.lined_up && std::tie(first.kind, first.reduction, first.peer) ==
                                                       std::tie(facts.kind, facts.reduction, facts.peer);
          }
          meeting.facts.emplace(i, &facts);
        }
      }
    }
    for (const auto& [stream, calls] : meetings_) {
      for (const auto& [call, meeting] : calls) {
        for (const auto& [i, facts] : meeting.facts) {
          if (facts->born != 0 && facts->gave == 0) born_at_.emplace(At{i, facts->born}, &meeting);
        }
      }
    }
  }

  // Ranks that give, or get, in this call.
  std::vector<std::uint32_t> members(const Meeting& meeting, bool giving) const {
    const CommStream& stream = *meeting.stream;
    if (stream.from >= 0 || stream.to >= 0) {
      const std::int64_t one = giving ? stream.from : stream.to;
      return one < 0 ? std::vector<std::uint32_t>{} : std::vector{static_cast<std::uint32_t>(one)};
    }
    std::vector<std::uint32_t> all = stream.ranks;
    if (all.empty()) {
      for (const RankPass* pass : ranks_) {
        if (pass->comm().streams().contains(stream)) all.push_back(pass->rank());
      }
    }
    const CallFacts& facts = meeting.any();
    const bool one_gives = facts.kind == CollectiveKind::kBroadcast || facts.kind == CollectiveKind::kScatter;
    const bool one_gets = facts.kind == CollectiveKind::kReduce || facts.kind == CollectiveKind::kGather;
    if (facts.peer >= 0 && (giving ? one_gives : one_gets)) return {static_cast<std::uint32_t>(facts.peer)};
    return all;
  }

  const CallFacts* facts_of(const Meeting& meeting, std::uint32_t rank) const {
    const auto index = index_.find(rank);
    if (index == index_.end()) return nullptr;
    const auto facts = meeting.facts.find(index->second);
    return facts == meeting.facts.end() ? nullptr : facts->second;
  }

  State state(const Meeting& meeting, std::uint32_t rank, bool giving) const {
    const auto index = index_.find(rank);
    if (index == index_.end() || !meeting.lined_up) return State::kUnknown;
    if (const CallFacts* facts = facts_of(meeting, rank)) {
      if ((giving ? facts->gave : facts->got) != 0) return State::kBad;
      return (giving ? facts->share_known : facts->result_known) ? State::kFinite : State::kUnknown;
    }
    const auto& streams = ranks_[index->second]->comm().streams();
    const auto stream = streams.find(*meeting.stream);
    if (stream == streams.end()) return State::kUnknown;
    const CommStreamCalls& calls = stream->second;
    if (meeting.call >= calls.forgotten_from || !calls.seen.contains(meeting.call)) return State::kUnknown;
    return giving && calls.unread.contains(meeting.call) ? State::kUnknown : State::kFinite;
  }

  // What other ranks gave that was bad: births, 0 where they are not known.
  std::vector<At> sources(const At& at, const Meeting& meeting) const {
    std::vector<At> out;
    if (!meeting.lined_up) return out;
    for (const std::uint32_t rank : members(meeting, true)) {
      const CallFacts* facts = facts_of(meeting, rank);
      if (facts == nullptr || facts->gave == 0 || index_.at(rank) == at.first) continue;
      if (facts->given.empty()) out.emplace_back(index_.at(rank), 0);
      for (BirthId id : facts->given) out.emplace_back(index_.at(rank), id);
    }
    return out;
  }

  // Back over the ranks, to births that no other rank had given. Those that nothing is known of are left out.
  void find_origins(const At& at, std::set<At>& seen, std::set<At>& origins) const {
    if (!seen.insert(at).second) return;
    const auto born = born_at_.find(at);
    const std::vector<At> from = born == born_at_.end() ? std::vector<At>{} : sources(at, *born->second);
    const std::size_t before = origins.size();
    for (const At& source : from) find_origins(source, seen, origins);
    if (!from.empty() && origins.size() > before) return;
    if (born != born_at_.end()) {
      origins.insert(told_at(at, *born->second));
    } else if (const Birth* birth = at.second == 0 ? nullptr : ranks_[at.first]->graph().birth(at.second)) {
      if (birth->deliberate != Deliberate::kYes) origins.insert({at.first, birth->id});
    }
  }

  // A call that went bad between ranks is told once, by the lowest rank that was harmed.
  At told_at(const At& at, const Meeting& meeting) const {
    for (const auto& [i, facts] : meeting.facts) {
      const Birth* birth = facts->born == 0 ? nullptr : ranks_[i]->graph().birth(facts->born);
      if (birth != nullptr && birth->harmful) return {i, birth->id};
    }
    const Birth* birth = ranks_[at.first]->graph().birth(at.second);
    return birth == nullptr ? at : At{at.first, birth->id};
  }

  void follow(const At& at, const Meeting& meeting) {
    ValueGraph& graph = ranks_[at.first]->graph();
    const Birth* birth = graph.birth(at.second);
    if (birth == nullptr || !birth->harmful || !followed_.insert(at).second) return;
    std::set<At> seen, origins;
    find_origins(at, seen, origins);
    origins.erase({at.first, birth->id});
    RankVerdict& own = verdicts_[at.first];
    if (origins.empty()) {
      const bool folded = birth->id != at.second && own.calls.contains(birth->id);
      if (!folded) own.calls.insert_or_assign(birth->id, story(at, meeting));
      return;
    }
    // Where births at one place count for the first of them, so does where that came from.
    const bool first = !own.calls.contains(birth->id) && own.carried.insert(birth->id).second;
    own.carried_from = std::min(own.carried_from, birth->events.first());
    const bool between = sources(at, meeting).empty();  // told by another rank, whose story says where it was bad
    for (const At& origin : origins) {
      const bool came_back = origin.first == at.first;
      ranks_[origin.first]->graph().add_harm_elsewhere(origin.second, *birth, came_back);
      if (between || came_back) continue;
      Arrival arrival;
      arrival.rank = ranks_[at.first]->rank();
      arrival.through = std::string(collective_kind_name(meeting.any().kind));
      if (meeting.any().kind == CollectiveKind::kSend) arrival.through = "recv";
      arrival.group = meeting.stream->group;
      const CallFacts& facts = *meeting.facts.at(at.first);
      arrival.step = facts.step;
      const auto there = meeting.facts.find(origin.first);
      if (there != meeting.facts.end()) arrival.seq = there->second->seq;
      if (first) {
        for (const SinkHit& sink : birth->sinks)
          arrival.sinks.push_back(sink_text(sink.kind, ranks_[at.first]->names().text(sink.path)));
        arrival.chain = birth->chain;
      }
      verdicts_[origin.first].arrivals[origin.second].push_back(std::move(arrival));
    }
  }

  CallStory story(const At& at, const Meeting& meeting) const {
    CallStory story;
    const CallFacts& own = *meeting.facts.at(at.first);
    story.kind = own.kind;
    story.reduction = own.reduction;
    story.group = meeting.stream->group;
    story.givers = members(meeting, true);
    story.dtype = own.dtype;
    story.lined_up = meeting.lined_up;
    const bool adds = own.reduction == Reduction::kSum || own.reduction == Reduction::kAvg;
    const bool reduces = adds || own.reduction == Reduction::kProduct;
    const double most = is_floating(own.dtype) ? format_limits(own.dtype).max_finite : 0;
    const double ranks = static_cast<double>(std::max<std::size_t>(2, story.givers.size()));
    story.reach = adds ? 0 : 1;
    for (const std::uint32_t rank : story.givers) {
      const CallFacts* facts = facts_of(meeting, rank);
      if (state(meeting, rank, true) == State::kUnknown) {
        story.unknown.push_back(rank);
        if (!index_.contains(rank)) story.untraced.push_back(rank);
        story.reach = std::numeric_limits<double>::infinity();
        continue;
      }
      if (facts != nullptr && facts->gave != 0 && index_.at(rank) != at.first) story.bad_from.push_back(rank);
      // A share without facts was too small to matter: comm_watch.cpp keeps those that are not.
      const double amax = facts != nullptr ? facts->amax : adds ? most / ranks : std::pow(most, 1 / ranks);
      story.reach = adds ? story.reach + amax : story.reach * amax;
    }
    story.can_pass = reduces && story.reach > most;
    for (const std::uint32_t rank : members(meeting, false)) {
      const State got = state(meeting, rank, false);
      if (got == State::kBad) story.bad_on.push_back(rank);
      if (got == State::kFinite) story.fine_on.push_back(rank);
    }
    return story;
  }

  // MIN and MAX compare, and every comparison with NaN is false: a NaN may be passed over.
  void find_lost(const Meeting& meeting) {
    const CallFacts& any = meeting.any();
    if (any.reduction != Reduction::kMin && any.reduction != Reduction::kMax) return;
    std::vector<std::uint32_t> lost_on;
    for (const std::uint32_t rank : members(meeting, false)) {
      const CallFacts* facts = facts_of(meeting, rank);
      const State got = state(meeting, rank, false);
      if (got == State::kFinite || (got == State::kBad && facts != nullptr && (facts->got & kBadNaN) == 0))
        lost_on.push_back(rank);
    }
    if (lost_on.empty()) return;
    for (const auto& [i, facts] : meeting.facts) {
      if (!facts->gives || (facts->gave & kBadNaN) == 0) continue;
      report_lost(i, *facts, *meeting.stream, lost_on);
    }
  }

  void report_lost(std::size_t i, const CallFacts& facts, const CommStream& stream, const std::vector<std::uint32_t>& lost_on) {
    const Names& names = ranks_[i]->names();
    std::vector<Finding>& findings = verdicts_[i].findings;
    const std::string op = names.text(facts.op), module = names.text(facts.module);
    const auto known = std::find_if(findings.begin(), findings.end(), [&](const Finding& f) {
      return f.place.op == op && f.place.module.value_or("") == module;
    });
    if (known != findings.end()) {
      if (facts.step != known->last_step) ++known->occurrence_count;
      known->last_step = std::max(known->last_step, facts.step);
      return;
    }
    if (findings.size() >= kMaxLost) return;
    const bool flag = facts.numel == 1;
    const std::string reduction = facts.reduction == Reduction::kMin ? "MIN" : "MAX";
    const std::string what = facts.gradient ? "a gradient" : flag ? "a single number" : "a tensor";
    Finding f;
    f.cls = FindingClass::kComm;
    f.severity = flag || facts.gradient ? Severity::kWarning : Severity::kInfo;
    f.place.step = f.first_step = f.last_step = facts.step;
    f.place.phase = facts.phase;
    f.place.seq = facts.seq;
    f.place.op = op;
    if (!module.empty()) f.place.module = module;
    f.lifecycle = Lifecycle::kDisappear;
    f.title = fmt::format("{} with {} lost the NaN that rank {} gave", op, reduction, ranks_[i]->rank());
    f.explanation = fmt::format(
        "Rank {} gave {} with NaN{}, and the result on {} holds none: {} compares, and a comparison with NaN is false. "
        "What "
        "is decided by this result is decided as if nothing were wrong.",
        ranks_[i]->rank(), what, stream.group.empty() ? "" : fmt::format(" to group {}", stream.group), ranks_text(lost_on),
        reduction);
    f.advice = {make_advice("reduce-flags")};
    findings.push_back(std::move(f));
  }

  const std::vector<RankPass*>& ranks_;
  std::vector<RankVerdict>& verdicts_;
  std::map<std::uint32_t, std::size_t> index_;  // by rank
  std::map<CommStream, std::map<std::uint64_t, Meeting>> meetings_;
  std::map<At, const Meeting*> born_at_;  // calls in which bad numbers came to a rank that gave none
  std::set<At> followed_;
};

}  // namespace

std::vector<RankVerdict> join_ranks(const std::vector<RankPass*>& ranks) {
  std::vector<RankVerdict> verdicts(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) verdicts[i].rank = ranks[i]->rank();
  Join(ranks, verdicts).run();
  join_steps(ranks, verdicts);
  join_replicas(ranks, verdicts);
  return verdicts;
}

}  // namespace nanhunt::analyze
