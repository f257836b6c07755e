// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/trip_policy.h"

#include <algorithm>

namespace nanhunt::hunt {

Trip TripPolicy::judge(std::uint32_t step, Harm harm) {
  if (harm == Harm::kNone) return Trip::kNone;
  const bool goes_on = last_bad_ && step <= *last_bad_ + 1;
  if (!goes_on) {
    streak_begin_ = step;
    streak_harm_ = Harm::kNone;
  }
  last_bad_ = step;
  if (step - streak_begin_ >= kLongStreak) harm = Harm::kHarm;
  const bool worse = harm > streak_harm_;
  streak_harm_ = std::max(streak_harm_, harm);
  if (last_replay_ == step) return Trip::kNone;
  if (!worse && last_replay_ && step - *last_replay_ < options_.distance) return Trip::kWaits;
  if (trips_ >= options_.max_trips) return Trip::kSpent;
  if (harm == Harm::kScaled) {
    if (scaled_trips_ >= (options_.max_trips + 1) / 2) return Trip::kSpent;
    ++scaled_trips_;
  }
  ++trips_;
  last_replay_ = step;
  return Trip::kReplay;
}

}  // namespace nanhunt::hunt
