// SPDX-License-Identifier: Apache-2.0
// Replicated parameters: whether the ranks that hold the same ones still hold the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanhunt/trace.h"
#include "src/analyze/stream/names.h"

namespace nanhunt::analyze {

inline constexpr std::size_t kMaxChecksums = 64;  // of a rank

struct Replicas {
  std::uint32_t lowest = 0;  // rank of them
  std::uint64_t count = 0;
  std::string of = {};  // which parameters: ranks that name others are not compared
  bool operator==(const Replicas&) const = default;
  auto operator<=>(const Replicas&) const = default;
};

// Checksums of all parameters of a rank at the ends of steps, ascending.
using Checksums = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

// Keeps those at multiples of a power of two: the smallest at which at most kMaxChecksums are left. So those of two
// ranks meet, however far each has come.
void thin_checksums(Checksums& checksums);

// What one rank's rows say.
class ReplicaWatch {
 public:
  void on_setup(const SetupRecord& row, const Names& names);
  void on_health(const HealthRecord& row);
  const std::optional<Replicas>& replicas() const { return replicas_; }  // none: no rank is known to hold the same
  Checksums checksums() const;

 private:
  std::optional<Replicas> replicas_;
  Checksums checksums_;
  std::uint32_t from_step_ = 0;  // in which replicas_ was told
};

// `replicas`: as the last word has them; none: nobody holds the same.
struct ReplicaFacts {
  std::uint32_t rank = 0;
  std::optional<Replicas> replicas;
  Checksums checksums;
};

// Ranks that hold the same parameters, and no longer the same numbers in them.
struct Parting {
  Replicas replicas;
  std::uint32_t step = 0;                    // the first at whose end their checksums are seen to differ
  std::optional<std::uint32_t> equal_until;  // the last before it at which all were equal; none: they never were
  std::vector<std::uint32_t> minority;       // ascending; empty: it cannot be said which are wrong
  std::vector<std::uint32_t> seen;           // of them, all whose checksum of that step is known
};

// By step, then by the lowest rank of the replicas. Ranks whose checksum of a step is missing say nothing.
std::vector<Parting> find_partings(const std::vector<ReplicaFacts>& ranks);

// "Rank 6 no longer holds the same parameters as 7 other replicas, since a step between 40 and 48".
std::string parting_text(const Parting& parting);
// What that may come from, and what to do, as sentences. `where`: the rank as it is called where somebody looks for it.
std::vector<std::string> parting_notes(const Parting& parting, const std::string& where);

}  // namespace nanhunt::analyze
