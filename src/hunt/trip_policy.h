// SPDX-License-Identifier: Apache-2.0
// Which bad steps are worth a replay. Steps that a loss scaler skips while it looks for its scale are the usual ones,
// and must not use up what a real fault needs later.
#pragma once

#include <cstdint>
#include <optional>

namespace nanhunt::hunt {

struct TripOptions {
  std::uint32_t max_trips = 10;  // of a run
  std::uint32_t distance = 100;  // steps between two within one streak
};

enum class Harm : std::uint8_t {
  kNone = 0,
  kScaled = 1,  // only gradients are bad, and a dynamic loss scaler holds the optimizer back
  kHarm = 2,    // anything else
};

enum class Trip : std::uint8_t {
  kNone,    // nothing is bad, or this step was replayed already
  kReplay,
  kWaits,   // the streak it belongs to was replayed less than `distance` steps ago
  kSpent,   // no replay is left for it
};

// A skip streak this long is no calibration any more: the scale has fallen by 2^32.
inline constexpr std::uint32_t kLongStreak = 32;

// A streak is a run of bad steps without a good one in between. Its first step is replayed, and a later one when it is
// worse than what was seen of the streak, or `distance` steps after the last replay. Scaled steps get half the trips.
class TripPolicy {
 public:
  explicit TripPolicy(const TripOptions& options = {}) : options_(options) {}

  // What is known of a step so far, as often as more is known; steps in order.
  Trip judge(std::uint32_t step, Harm harm);
  std::uint32_t trips() const { return trips_; }

 private:
  TripOptions options_;
  std::uint32_t trips_ = 0, scaled_trips_ = 0;
  std::optional<std::uint32_t> last_bad_, last_replay_;
  std::uint32_t streak_begin_ = 0;
  Harm streak_harm_ = Harm::kNone;  // worst that was judged in it
};

}  // namespace nanhunt::hunt
