// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/trigger_policy.h"

#include <algorithm>

namespace nanhunt::hunt {

Trigger TriggerPolicy::judge(std::uint32_t step, Harm harm) {
  if (harm == Harm::kNone) return Trigger::kNone;
  const bool goes_on = last_bad_ && step <= *last_bad_ + 1;
  if (!goes_on) {
    streak_begin_ = step;
    streak_harm_ = Harm::kNone;
  }
  streak_begin_ = std::min(streak_begin_, step);  // of a step before one that was judged, more may be known later
  last_bad_ = std::max(last_bad_.value_or(step), step);
  if (step - streak_begin_ >= kLongStreak) harm = Harm::kHarm;
  const bool worse = harm > streak_harm_;
  streak_harm_ = std::max(streak_harm_, harm);
  if (last_taken_ == step) return Trigger::kNone;
  const std::uint32_t last = last_taken_.value_or(step);
  if (!worse && last_taken_ && std::max(step, last) - std::min(step, last) < options_.distance) return Trigger::kWaits;
  if (triggers_ >= options_.max_triggers) return Trigger::kSpent;
  if (harm == Harm::kScaled) {
    if (scaled_triggers_ >= (options_.max_triggers + 1) / 2) return Trigger::kSpent;
    ++scaled_triggers_;
  }
  ++triggers_;
  last_taken_ = step;
  return Trigger::kTaken;
}

}  // namespace nanhunt::hunt
