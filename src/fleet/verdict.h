// SPDX-License-Identifier: Apache-2.0
// From the digests of all ranks to one verdict: where it began, what those ranks have in common, and what is not known.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/fleet/read_digests.h"
#include "src/fleet/shape.h"

namespace nanhunt::fleet {

using analyze::Parting;

struct FleetVerdict {
  VerdictStatus status = VerdictStatus::kInconclusive;
  std::string headline;
  // The origin that came first, by step and micro-batch; of several at once, that of the lowest rank.
  std::optional<std::uint32_t> first_rank;
  std::optional<DigestOrigin> first;
  std::vector<std::uint32_t> ranks;       // on which it began, ascending
  std::vector<std::uint32_t> first_ranks; // of them, those in the first step and micro-batch
  Shape shape;                            // of `ranks`
  std::uint64_t other_origins = 0;        // ranks with an origin of another kind alone
  std::optional<DigestArrival> came_by;   // the first call by which it came to others, or came from a rank that is not there
  std::vector<std::uint32_t> reached;     // ranks to which it came, ascending
  bool origin_is_missing = false;         // bad numbers came in a step before any origin that is known
  std::optional<Parting> parting;         // the first
  std::uint64_t partings = 0;
  bool parting_leads = false;             // parameters parted before anything was bad: the verdict is of that
  std::optional<std::uint32_t> clean_through;  // of all ranks; none: not even the first step, or not known
  std::vector<std::uint32_t> unended;     // ranks whose attempt had no end: they go on, hang, or were killed
  std::vector<std::string> notes;         // sentences: hardware, ranks that are missing, damaged, of other versions
  std::vector<std::uint32_t> to_open;     // ranks whose traces say more: at most kMaxOpened, origins first
  Digests digests;
};

inline constexpr std::size_t kMaxOpened = 5;

FleetVerdict judge_fleet(Digests digests);

}  // namespace nanhunt::fleet
