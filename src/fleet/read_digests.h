// SPDX-License-Identifier: Apache-2.0
// The digests of all ranks of a run, from its folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/fleet/digest.h"
#include "src/fleet/shape.h"

namespace nanhunt::fleet {

// Where an attempt of a rank is.
struct RankFolder {
  std::string path;
  std::uint32_t rank = 0, attempt = 0;
};
std::vector<RankFolder> rank_folders(const std::string& run);  // by rank, then attempt; empty: none
Result<Digest> read_digest(const RankFolder& folder);          // refused where it is another's

struct UnreadDigest {
  std::optional<std::uint32_t> rank;  // by the name of its folder
  std::string path, why;
};

struct Digests {
  std::vector<Digest> ranks;         // one a rank, ascending: of the newest attempt
  std::vector<UnreadDigest> unread;  // damaged; ranks with another attempt that can be read are among `ranks` all the same
  std::vector<std::uint32_t> older;  // ranks of which only an attempt of another launch than that of most is there
  std::uint64_t earlier = 0;         // digests of other launches, of ranks that are there
  std::uint32_t world_size = 0;
  std::uint64_t made = 0;     // from traces, now: they were missing, or older than the trace
  std::uint64_t unkept = 0;   // of these, that could not be written beside it
  std::uint64_t stale = 0;    // older than the trace beside them, and not made anew
  const Digest* find(std::uint32_t rank) const;  // nullptr: it left none
  std::vector<std::uint32_t> missing(std::size_t most) const;  // the first `most` of them
  std::vector<RankRange> missing_ranges(std::size_t most) const;
  std::uint64_t missing_count() const;
};

struct ReadOptions {
  bool make = true;         // from traces where they are missing
  unsigned workers = 0;     // threads; 0: one for each processor
  std::function<void(std::size_t done, std::size_t all)> progress = {};  // from one thread at a time
};

Result<Digests> read_digests(const std::string& run, const ReadOptions& options);

// Of each rank one: of the newest attempt, as most of them see it, with what other processes of the same rank and run
// saw. Fills `ranks`, `older` and `world_size`. By run, job and number, never by a clock.
void choose_attempts(std::vector<Digest> all, Digests& into);

}  // namespace nanhunt::fleet
