// SPDX-License-Identifier: Apache-2.0
// What a run shows while it goes on, for people, programs and metrics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/fleet/shape.h"

namespace nanhunt::fleet {

enum class LiveState : std::uint8_t {
  kNotBegun,  // no rank of it is there
  kTraining,  // something new came a short while ago
  kEnded,     // all that was begun has been closed
  kQuiet,     // nothing new for a while: it is slow, hangs, or was killed
};
std::string_view live_state_name(LiveState state);  // "not_begun", "training", "ended", "quiet"

// One kind of fault: class, operation, module and line, with where it was first.
struct LiveFault {
  std::uint32_t rank = 0, ranks = 1, step = 0;
  std::string cls, op, module, call_site, title;
  std::string key() const { return cls + "\n" + op + "\n" + module + "\n" + call_site; }
};

// Of a rank, of the ranks at one place along a dimension, of a whole run. Numbers of several ranks: steps and counts are
// those of the rank with the most, `clean_through` and `scale` of that with the least.
struct LiveNumbers {
  std::uint64_t ranks = 0, training = 0, ended = 0, quiet = 0;
  std::optional<std::uint32_t> lowest_step, highest_step, clean_through;
  std::uint64_t bad_steps = 0, skipped_steps = 0;
  std::optional<double> scale;
  bool any_unclean = false;  // of a rank that has steps, not one is known to be clean: clean_through is none
  void add(const LiveNumbers& rank);
};

struct LiveGroup {
  Place place;  // {"pipeline", "3"}, {"host", "n17"}; {"", "other"}: those that are not listed
  LiveNumbers numbers;
};

struct LiveRank {
  std::uint32_t rank = 0;
  std::vector<Place> places;  // coordinates, or the host where it has none
  LiveNumbers numbers;
};

struct LiveStatus {
  LiveState state = LiveState::kNotBegun;
  VerdictStatus status = VerdictStatus::kInconclusive;  // as `nanhunt fleet` says it
  std::string headline;                                 // "": nothing can be said yet
  std::uint64_t world_size = 0;
  LiveNumbers numbers;
  std::vector<LiveGroup> groups;  // at most kMaxGroups, and "other"
  // Of the lowest rank that shows them; none: not known.
  std::optional<std::uint32_t> shown_rank;
  std::optional<double> loss, lr, gradient_norm, seconds_per_step, watching;
  std::vector<LiveFault> faults;  // at most kMaxLiveFaults, by step
  std::uint64_t damaged = 0;      // ranks of which something could not be read
  double quiet_seconds = 0;       // since the last thing that was new; volatile
};

inline constexpr std::size_t kMaxGroups = 64, kMaxLiveFaults = 16;

// By dimension, those with the fewest places first; the rest of what does not fit is one group.
std::vector<LiveGroup> group_ranks(const std::vector<LiveRank>& ranks, std::size_t most = kMaxGroups);

// One line: schema nanhunt.watch, version 1. tools/nanhunt/GUIDE.md has its keys.
std::string render_live_json(const LiveStatus& status, std::string_view run);

}  // namespace nanhunt::fleet
