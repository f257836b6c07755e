// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/ranks/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include "src/analyze/ranks/rank_propagation.h"

namespace nanhunt::analyze {
namespace {

// By checksum, the ranks that have it.
using RanksOfChecksum = std::map<std::uint64_t, std::vector<std::uint32_t>>;

std::optional<Parting> parting_of(const Replicas& replicas, const std::map<std::uint32_t, RanksOfChecksum>& steps) {
  Parting parting;
  parting.replicas = replicas;
  for (const auto& [step, checksums] : steps) {
    std::size_t seen = 0, most = 0;
    for (const auto& [checksum, ranks] : checksums) {
      seen += ranks.size();
      most = std::max(most, ranks.size());
    }
    if (seen < 2) continue;
    if (checksums.size() == 1) {
      parting.equal_until = step;
      continue;
    }
    parting.step = step;
    const bool known = 2 * most > seen;
    for (const auto& [checksum, ranks] : checksums) {
      parting.seen.insert(parting.seen.end(), ranks.begin(), ranks.end());
      if (known && ranks.size() != most) parting.minority.insert(parting.minority.end(), ranks.begin(), ranks.end());
    }
    std::sort(parting.seen.begin(), parting.seen.end());
    std::sort(parting.minority.begin(), parting.minority.end());
    return parting;
  }
  return std::nullopt;
}

}  // namespace

void thin_checksums(Checksums& checksums) {
  for (std::uint32_t every = 2; checksums.size() > kMaxChecksums && every != 0; every *= 2) {
    std::erase_if(checksums, [&](const auto& one) { return one.first % every != 0; });
  }
}

void ReplicaWatch::on_setup(const SetupRecord& row, const Names& names) {
  if (row.fact != SetupFact::kReplicas || !(row.number >= 0 && row.number <= UINT32_MAX)) return;
  const std::string& count = names.text(row.text);
  Replicas replicas{static_cast<std::uint32_t>(row.number), 0, {}};
  std::from_chars(count.data(), count.data() + count.size(), replicas.count);
  replicas.of = names.text(row.path);
  replicas_ = replicas.count > 1 ? std::optional(replicas) : std::nullopt;  // the last word counts, from its step on
  from_step_ = row.step;
  std::erase_if(checksums_, [&](const auto& one) { return one.first < from_step_; });
}

void ReplicaWatch::on_health(const HealthRecord& row) {
  if (row.weight_checksum == 0 || row.step < from_step_) return;
  checksums_.emplace_back(row.step, row.weight_checksum);
  if (checksums_.size() > 2 * kMaxChecksums) thin_checksums(checksums_);
}

Checksums ReplicaWatch::checksums() const {
  Checksums sorted = checksums_;
  std::sort(sorted.begin(), sorted.end());
  const auto same_step = [](const auto& a, const auto& b) { return a.first == b.first; };
  sorted.erase(std::unique(sorted.begin(), sorted.end(), same_step), sorted.end());
  thin_checksums(sorted);
  return sorted;
}

std::vector<Parting> find_partings(const std::vector<ReplicaFacts>& ranks) {
  std::map<Replicas, std::map<std::uint32_t, RanksOfChecksum>> all;
  for (const ReplicaFacts& one : ranks) {
    if (!one.replicas || one.replicas->count < 2) continue;
    std::map<std::uint32_t, RanksOfChecksum>& steps = all[*one.replicas];
    for (const auto& [step, checksum] : one.checksums) steps[step][checksum].push_back(one.rank);
  }
  std::vector<Parting> partings;
  for (const auto& [replicas, steps] : all) {
    if (auto parting = parting_of(replicas, steps)) partings.push_back(std::move(*parting));
  }
  std::stable_sort(partings.begin(), partings.end(), [](const Parting& a, const Parting& b) {
    return std::tuple(a.step, a.replicas.lowest) < std::tuple(b.step, b.replicas.lowest);
  });
  return partings;
}

std::string parting_text(const Parting& parting) {
  const bool at_first = !parting.equal_until;
  const std::string when = at_first ? fmt::format("in step {} already", parting.step)
                                    : fmt::format("since a step between {} and {}", *parting.equal_until, parting.step);
  if (parting.minority.empty()) {
    return fmt::format("{} replicas of the same parameters {}, {}", parting.seen.size(),
                       at_first ? "hold different numbers" : "no longer hold the same numbers", when);
  }
  const std::size_t others = parting.seen.size() - parting.minority.size();
  const bool one = parting.minority.size() == 1;
  std::string who = ranks_text(parting.minority);
  who[0] = 'R';
  const char* holds = at_first ? (one ? "does not hold" : "do not hold") : (one ? "no longer holds" : "no longer hold");
  return fmt::format("{} {} the same parameters as {} other {}, {}", who, holds, others, others == 1 ? "replica" : "replicas", when);
}

std::vector<std::string> parting_notes(const Parting& parting, const std::string& where) {
  std::vector<std::string> notes = {fmt::format("The program says that {} ranks hold the same parameters: {} and {} more.",
                                                parting.replicas.count, ranks_text({parting.replicas.lowest}), parting.replicas.count - 1)};
  if (parting.minority.empty()) {
    notes.push_back("Which of them are wrong cannot be told: no value is that of most.");
  } else if (parting.equal_until) {
    notes.push_back(fmt::format("Nothing was seen to be NaN or Inf: memory or a processor that computes wrong is likely, or a step that {} took alone. "
                                "Processors, or numbers of threads, that differ between ranks may round differently, too. Run {} elsewhere.",
                                parting.minority.size() == 1 ? "this rank" : "these ranks", where));
  } else {
    notes.push_back("They differ from the start: parameters were not broadcast, or changed after they were.");
  }
  return notes;
}

}  // namespace nanhunt::analyze
