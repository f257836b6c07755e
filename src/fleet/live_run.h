// SPDX-License-Identifier: Apache-2.0
// A run folder looked at again and again while ranks write into it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/fleet/attempt_tail.h"
#include "src/fleet/live_status.h"
#include "src/fleet/read_digests.h"
#include "src/fleet/verdict.h"

namespace nanhunt::fleet {

// Opens files to read them, and writes nothing. Of each rank its digest, where that has changed, and the sizes of its
// segments; of the lowest kMaxTails ranks also the rows that came. Those of them without a digest are judged in memory:
// where numbers went bad or steps were skipped, twice as often as before, and when they end.
class LiveRun {
 public:
  using Clock = std::chrono::system_clock;

  LiveRun(std::string run, double quiet_after_seconds);
  ~LiveRun();
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  LiveStatus refresh(Clock::time_point now);
  bool behind() const { return behind_; }  // more was there than one refresh reads

 private:
  struct Attempt;
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // rank, attempt

  void find_attempts(Clock::time_point now);
  void choose_current();
  void observe(Attempt& attempt, Clock::time_point now);
  void read_tails();
  void find_end(Attempt& attempt, Clock::time_point now);
  void judge_in_memory(Attempt& attempt);
  void judge();
  void add_faults(LiveStatus& status) const;
  static void write_headline(LiveStatus& status);
  LiveState state_of(const Attempt& attempt, Clock::time_point now) const;
  LiveRank rank_of(std::uint32_t rank, Clock::time_point now) const;
  const Attempt* shown_attempt(std::uint32_t rank) const;

  const std::string run_;
  const double quiet_after_;
  std::map<Key, std::unique_ptr<Attempt>> attempts_;
  std::map<std::uint32_t, std::vector<Attempt*>> current_;  // by rank
  bool changed_ = true, behind_ = false;
  std::size_t ends_looked_for_ = 0;
  FleetVerdict verdict_;
};

inline constexpr std::size_t kMaxTails = 16;

}  // namespace nanhunt::fleet
