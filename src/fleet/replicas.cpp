// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/replicas.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace nanhunt::fleet {
namespace {

// By checksum, the ranks that have it.
using Step = std::map<std::uint64_t, std::vector<std::uint32_t>>;

std::optional<Parting> parting_of(const Replicas& replicas, const std::map<std::uint32_t, Step>& steps) {
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

std::vector<Parting> find_partings(const std::vector<Digest>& ranks) {
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::map<std::uint32_t, Step>> all;  // by lowest rank and count
  for (const Digest& one : ranks) {
    if (!one.replicas || one.replicas->count < 2) continue;
    std::map<std::uint32_t, Step>& steps = all[{one.replicas->lowest, one.replicas->count}];
    for (const auto& [step, checksum] : one.checksums) steps[step][checksum].push_back(one.rank);
  }
  std::vector<Parting> partings;
  for (const auto& [key, steps] : all) {
    if (auto parting = parting_of({key.first, key.second}, steps)) partings.push_back(std::move(*parting));
  }
  std::stable_sort(partings.begin(), partings.end(), [](const Parting& a, const Parting& b) {
    return std::tuple(a.step, a.replicas.lowest) < std::tuple(b.step, b.replicas.lowest);
  });
  return partings;
}

}  // namespace nanhunt::fleet
