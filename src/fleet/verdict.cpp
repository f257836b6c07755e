// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "src/analyze/ranks/replicas.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::fleet {
namespace {

constexpr std::size_t kMostRanges = 16;  // in a sentence

using Moment = std::pair<std::uint32_t, std::uint32_t>;  // step, micro-batch
Moment moment_of(const DigestOrigin& one) { return {one.place.step, one.place.micro_batch}; }
Moment moment_of(const DigestArrival& one) { return {one.step, one.micro_batch}; }

// Origins that one cause would have on several ranks.
using Kind = std::tuple<FindingClass, std::string, Phase>;
Kind kind_of(const DigestOrigin& one) { return {one.cls, one.place.op.value_or(""), one.place.phase}; }

std::string capitalised(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string step_text(const Moment& moment) {
  return moment.second == 0 ? fmt::format("step {}", moment.first)
                            : fmt::format("step {}, micro-batch {}", moment.first, moment.second);
}

std::string origin_text(const DigestOrigin& one) {
  std::string text = fmt::format("{} at {}", finding_class_name(one.cls), one.place.op.value_or("no single operation"));
  if (one.place.module) text += fmt::format(" in {}", *one.place.module);
  if (!one.call_site.empty()) text += fmt::format(" ({})", one.call_site);
  return text + fmt::format(", {}", step_text(moment_of(one)));
}

std::string arrival_text(const DigestArrival& one) {
  std::string text = fmt::format("{} {}", one.through, one.call);
  if (!one.group.empty()) text += fmt::format(" of group {}", one.group);
  return text + fmt::format(", {}", step_text(moment_of(one)));
}

class Judge {
 public:
  explicit Judge(Digests digests) { verdict_.digests = std::move(digests); }

  FleetVerdict run() {
    for (const Digest& one : ranks()) {
      for (const DigestOrigin& origin : one.origins) worst_ = std::max(worst_, origin.severity);
      if (one.arrival) worst_ = std::max(worst_, one.arrival->severity);
    }
    find_first();
    find_arrivals();
    find_ranks();
    leave_out_returns();
    find_partings();
    find_clean_steps();
    for (const Digest& one : ranks()) {
      if (!one.ended) verdict_.unended.push_back(one.rank);
    }
    conclude();
    add_notes();
    choose_traces();
    return std::move(verdict_);
  }

 private:
  const std::vector<Digest>& ranks() const { return verdict_.digests.ranks; }
  bool counts(Severity severity) const { return worst_ != Severity::kInfo && severity == worst_; }

  void find_first() {
    for (const Digest& one : ranks()) {
      for (const DigestOrigin& origin : one.origins) {
        if (!counts(origin.severity)) continue;
        if (verdict_.first && moment_of(*verdict_.first) <= moment_of(origin)) continue;
        verdict_.first = origin;
        verdict_.first_rank = one.rank;
      }
    }
  }

  void find_arrivals() {
    for (const Digest& one : ranks()) {
      if (!one.arrival || !counts(one.arrival->severity)) continue;
      verdict_.reached.push_back(one.rank);
    }
    find_earliest_arrival();
    // Micro-batches are not numbered alike on all ranks, so steps alone tell.
    verdict_.origin_is_missing = verdict_.came_by && (!verdict_.first || verdict_.came_by->step < verdict_.first->place.step);
  }

  // On which ranks it began: those with an origin at the first moment, and those with one of such a kind later. An
  // operation that made something bad of finite numbers did so by itself, whatever came to its rank before.
  void find_ranks() {
    std::vector<bool> in(ranks().size(), false);
    if (verdict_.first) {
      const Moment first = moment_of(*verdict_.first);
      std::set<Kind> kinds;
      for (const Digest& one : ranks()) {
        for (const DigestOrigin& origin : one.origins) {
          if (counts(origin.severity) && moment_of(origin) == first) kinds.insert(kind_of(origin));
        }
      }
      for (std::size_t i = 0; i < ranks().size(); ++i) {
        const Digest& one = ranks()[i];
        bool any = false, at_first = false;
        for (const DigestOrigin& origin : one.origins) {
          if (!counts(origin.severity)) continue;
          any = true;
          at_first = at_first || moment_of(origin) == first;
          in[i] = in[i] || at_first || kinds.contains(kind_of(origin));
        }
        if (in[i]) verdict_.ranks.push_back(one.rank);
        if (at_first) verdict_.first_ranks.push_back(one.rank);
        verdict_.other_origins += any && !in[i] ? 1 : 0;
      }
    }
    verdict_.shape = find_shape(ranks(), in);
  }

  // What came to a rank on which it had begun is no news of where it went.
  void leave_out_returns() {
    if (verdict_.origin_is_missing) return;
    const auto began = [&](std::uint32_t rank) { return std::binary_search(verdict_.ranks.begin(), verdict_.ranks.end(), rank); };
    std::erase_if(verdict_.reached, began);
    find_earliest_arrival();
  }

  void find_earliest_arrival() {
    verdict_.came_by.reset();
    for (const std::uint32_t rank : verdict_.reached) {
      const DigestArrival& arrival = *find(rank)->arrival;
      if (!verdict_.came_by || moment_of(arrival) < moment_of(*verdict_.came_by)) verdict_.came_by = arrival;
    }
  }

  void find_partings() {
    std::vector<analyze::ReplicaFacts> facts;
    for (const Digest& one : ranks()) facts.push_back({one.rank, one.replicas, one.checksums});
    std::vector<Parting> partings = analyze::find_partings(facts);
    verdict_.partings = partings.size();
    if (!partings.empty()) verdict_.parting = std::move(partings.front());
  }

  // Did parameters part before any origin? One that lies between the last equal and the first unequal checksum made them.
  bool parting_leads() const {
    if (!verdict_.parting) return false;
    const auto before = [&](const Moment& moment) { return verdict_.parting->step < moment.first; };
    return (!verdict_.first || before(moment_of(*verdict_.first))) && (!verdict_.came_by || before(moment_of(*verdict_.came_by)));
  }

  void find_clean_steps() {
    std::optional<std::uint32_t> least;
    for (const Digest& one : ranks()) {
      if (!one.last_step) continue;
      if (!one.clean_through) return;
      least = std::min(least.value_or(UINT32_MAX), *one.clean_through);
    }
    verdict_.clean_through = least;
    if (!parting_leads() || !least) return;
    const std::optional<std::uint32_t> equal = verdict_.parting->equal_until;
    verdict_.clean_through = equal ? std::optional(std::min(*least, *equal)) : std::nullopt;
  }

  std::uint64_t silent() const {
    return static_cast<std::uint64_t>(std::count_if(ranks().begin(), ranks().end(), [](const Digest& one) { return !one.last_step; }));
  }

  void conclude() {
    const std::uint64_t world = verdict_.digests.world_size, missing = verdict_.digests.missing_count();
    if (parting_leads()) {
      verdict_.parting_leads = true;
      verdict_.status = VerdictStatus::kFault;
      verdict_.headline = analyze::parting_text(*verdict_.parting);
      return;
    }
    if (verdict_.first || verdict_.came_by) {
      verdict_.status = worst_ == Severity::kFault ? VerdictStatus::kFault : VerdictStatus::kWarning;
      if (verdict_.origin_is_missing) {
        const DigestArrival& came = *verdict_.came_by;
        const std::string who = missing == 1 ? fmt::format("rank {}", verdict_.digests.missing(1).front()) : "the rank that gave them";
        const std::string why = missing > 0         ? who + " left no digest"
                                : came.members == 1 ? fmt::format("why what rank {} gave was bad is not recorded", came.lowest)
                                                    : "why what was given there was bad is not recorded";
        verdict_.headline =
            fmt::format("Bad numbers came to {} of {} ranks by {}; {}", verdict_.reached.size(), world, arrival_text(came), why);
        return;
      }
      verdict_.headline = fmt::format("{}: {}", capitalised(shape_text(verdict_.shape, verdict_.ranks)), origin_text(*verdict_.first));
      return;
    }
    const std::uint64_t unread = missing + silent();
    const bool open = std::any_of(ranks().begin(), ranks().end(), [](const Digest& one) {
      return one.last_step && one.status == VerdictStatus::kInconclusive;
    });
    const bool calibrating = std::any_of(ranks().begin(), ranks().end(),
                                         [](const Digest& one) { return one.status == VerdictStatus::kCalibrating; });
    const std::string through = verdict_.clean_through ? fmt::format(" through step {}", *verdict_.clean_through) : "";
    if (unread > 0 || open) {
      verdict_.headline = fmt::format("No harm on {} of {} ranks{}; {}", ranks().size() - silent(), world, through,
                                      unread > 0 ? fmt::format("{} left nothing to judge", unread) : "some could not judge all that they saw");
      return;
    }
    verdict_.status = calibrating ? VerdictStatus::kCalibrating : VerdictStatus::kClean;
    verdict_.headline = fmt::format("No harmful NaN or Inf on {} ranks{}", world, through);
    if (const std::size_t going = verdict_.unended.size(); going > 0)
      verdict_.headline += fmt::format(" so far: {} of them {} not ended", going, going == 1 ? "has" : "have");
    // Where others have ended it was killed, or hangs.
    if (!verdict_.unended.empty() && verdict_.unended.size() < ranks().size()) verdict_.status = VerdictStatus::kInconclusive;
  }

  void add_notes() {
    if (verdict_.first && !parting_leads()) add_origin_notes();
    if (verdict_.parting) add_parting_notes(*verdict_.parting);
    const bool compared = std::any_of(ranks().begin(), ranks().end(), [](const Digest& one) { return one.replicas && !one.checksums.empty(); });
    if (!compared && verdict_.status == VerdictStatus::kClean)
      note("Parameters of replicas were not compared: no rank left checksums of any (they are taken on the CPU, at levels live and steps).");
    const Digests& d = verdict_.digests;
    if (const std::uint64_t missing = d.missing_count(); missing > 0) {
      const bool all_without = d.unread.empty() && d.older.empty();
      note("{} of {} ranks left no digest{}: {}. What they did is not known.", missing, d.world_size,
           all_without ? "" : " of this launch that can be read", ranges_text(d.missing_ranges(kMostRanges), missing));
    }
    if (!d.unread.empty())
      note("{} cannot be read ({}: {}).", analyze::count_of(static_cast<std::int64_t>(d.unread.size()), "digest"), d.unread.front().path, d.unread.front().why);
    if (!d.older.empty()) note("{} left only a digest of another launch, which is not looked at.", capitalised(listed(d.older)));
    if (d.earlier > 0) note("{} of other launches {} not looked at.", analyze::count_of(static_cast<std::int64_t>(d.earlier), "digest"), d.earlier == 1 ? "is" : "are");
    if (d.unkept > 0) note("{} made from traces could not be written beside them.", analyze::count_of(static_cast<std::int64_t>(d.unkept), "digest"));
    if (d.stale > 0)
      note("{} older than the {}: what came later is not known.", d.stale == 1 ? "1 digest is" : fmt::format("{} digests are", d.stale), d.stale == 1 ? "trace beside it" : "traces beside them");
    std::set<std::string> nanhunts, frameworks, levels;
    std::uint64_t lossy = 0;
    for (const Digest& one : ranks()) {
      nanhunts.insert(one.nanhunt);
      frameworks.insert(one.framework);
      levels.insert(one.level);
      lossy += one.records_dropped + one.chunks_lost > 0 ? 1 : 0;
    }
    const auto differ = [&](const char* what, const std::set<std::string>& values) {
      if (values.size() > 1) note("Ranks differ in {}: {}.", what, analyze::join({values.begin(), values.end()}, 4));
    };
    differ("the version of nanhunt", nanhunts);
    differ("the framework", frameworks);
    differ("the level", levels);
    add_unended_note();
    if (lossy > 0) note("Records are missing on {} of {} ranks.", lossy, ranks().size());
    if (const std::uint64_t none = silent(); none > 0) note("{} of {} ranks recorded no step.", none, ranks().size());
  }

  void add_unended_note() {
    if (verdict_.unended.empty()) return;
    std::optional<std::uint32_t> behind, ahead;  // last steps of those, and of all
    for (const Digest& one : ranks()) {
      if (!one.last_step) continue;
      ahead = std::max(ahead.value_or(0), *one.last_step);
      if (!one.ended) behind = std::min(behind.value_or(UINT32_MAX), *one.last_step);
    }
    std::string text = "No rank has ended";
    if (verdict_.unended.size() < ranks().size())
      text = fmt::format("{} {} not ended", capitalised(listed(verdict_.unended)), verdict_.unended.size() == 1 ? "has" : "have");
    const char* whose = verdict_.unended.size() == 1 ? "its" : "the slowest one's";
    if (behind) text += fmt::format(": {} last step is {}", whose, *behind);
    if (behind && *ahead != *behind) text += fmt::format(", the fastest rank's {}", *ahead);
    verdict_.notes.push_back(text + ". Killed, hanging, or still going.");
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    verdict_.notes.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  static std::string listed(const std::vector<std::uint32_t>& ranks) {
    return ranges_text(ranges_of(ranks, kMostRanges), ranks.size());
  }

  void add_origin_notes() {
    const Shape& shape = verdict_.shape;
    for (const std::vector<Place>& places : shape.also) {
      note("{} of {}{}.", shape.ranks == 1 ? "It is the only rank" : "These are exactly the ranks", places_text(places), shape.ranks == 1 ? "" : " as well");
    }
    if (verdict_.first_ranks.size() < verdict_.ranks.size()) {
      note("It came first on {}, {}; on the others in later steps.", listed(verdict_.first_ranks), step_text(moment_of(*verdict_.first)));
    } else if (verdict_.ranks.size() > 1) {
      note("It came on all of them in {}: which was first cannot be told.", step_text(moment_of(*verdict_.first)));
    }
    const bool by_itself = verdict_.first->cls == FindingClass::kCorruption || verdict_.first->cls == FindingClass::kNotReproducible;
    if (by_itself && shape.kind == ShapeKind::kOne) {
      note("Computed again it is finite, and no other rank has it: a card or its memory is likely. Run {} elsewhere.", where(*verdict_.first_rank));
    } else if (by_itself && shape.places.size() == 1 && shape.places.front().dimension == "host") {
      note("Computed again it is finite, and no other host has it: run without {}.", shape.places.front().value);
    }
    if (verdict_.came_by && !verdict_.origin_is_missing)
      note("It came to {} by {}.", analyze::count_of(static_cast<std::int64_t>(verdict_.reached.size()), "rank"), arrival_text(*verdict_.came_by));
    if (verdict_.other_origins > 0)
      note("{} more {} an origin of another kind, later.", verdict_.other_origins, verdict_.other_origins == 1 ? "rank has" : "ranks have");
  }

  std::string where(std::uint32_t rank) const {
    const Digest* one = find(rank);
    std::string text = fmt::format("rank {}", rank);
    if (one == nullptr || one->host.empty()) return text;
    return text + fmt::format(" (host {}{}{})", one->host, one->accelerator_id.empty() ? "" : ", ", one->accelerator_id);
  }

  const Digest* find(std::uint32_t rank) const { return verdict_.digests.find(rank); }

  void add_parting_notes(const Parting& p) {
    if (!parting_leads()) {
      note("Replicas of the same parameters hold different numbers from step {} on: what came of it.", p.step);
      return;
    }
    for (std::string& text : analyze::parting_notes(p, p.minority.empty() ? "" : where(p.minority.front())))
      verdict_.notes.push_back(std::move(text));
    if (verdict_.partings > 1) note("{} sets of replicas part in all.", verdict_.partings);
  }

  void choose_traces() {
    std::vector<std::uint32_t>& open = verdict_.to_open;
    const auto take = [&](const std::vector<std::uint32_t>& from, std::size_t most) {
      for (const std::uint32_t rank : from) {
        if (open.size() < most && std::find(open.begin(), open.end(), rank) == open.end()) open.push_back(rank);
      }
    };
    if (parting_leads()) {
      take(verdict_.parting->minority, kMaxOpened - 1);
      take(verdict_.parting->seen, kMaxOpened);
      return;
    }
    take(verdict_.first_ranks, kMaxOpened - 1);
    take(verdict_.ranks, kMaxOpened - 1);
    if (verdict_.origin_is_missing) {
      open.clear();
      if (verdict_.came_by->members == 1 && find(verdict_.came_by->lowest) != nullptr) take({verdict_.came_by->lowest}, kMaxOpened);
      for (const Digest& one : ranks()) {
        if (one.arrival && moment_of(*one.arrival) == moment_of(*verdict_.came_by)) take({one.rank}, kMaxOpened);
      }
    }
    if (open.empty() || open.size() >= kMaxOpened) return;
    // The nearest of the others: what a healthy rank did in that step.
    const std::uint32_t from = open.front();
    const Digest* nearest = nullptr;
    const auto distance = [&](const Digest& one) { return std::max(one.rank, from) - std::min(one.rank, from); };
    for (const Digest& one : ranks()) {
      const bool opened = std::find(open.begin(), open.end(), one.rank) != open.end();
      if (!opened && (nearest == nullptr || distance(one) < distance(*nearest))) nearest = &one;
    }
    if (nearest != nullptr) open.push_back(nearest->rank);
  }

  FleetVerdict verdict_;
  Severity worst_ = Severity::kInfo;
};

}  // namespace

FleetVerdict judge_fleet(Digests digests) { return Judge(std::move(digests)).run(); }

}  // namespace nanhunt::fleet
