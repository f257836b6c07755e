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
  last_bad_ = step;
  if (step - streak_begin_ >= kLongStreak) harm = Harm::kHarm;
  const bool worse = harm > streak_harm_;
  streak_harm_ = std::max(streak_harm_, harm);
  if (last_replay_ == step) return Trigger::kNone;
  if (!worse && last_replay_ && step - *last_replay_ < options_.distance) return Trigger::kWaits;
  if (triggers_ >= options_.max_triggers) return Trigger::kSpent;
  if (harm == Harm::kScaled) {
    if (scaled_triggers_ >= (options_.max_triggers + 1) / 2) return Trigger::kSpent;
    ++scaled_triggers_;
  }
  ++triggers_;
  last_replay_ = step;
  return Trigger::kReplay;
}

}  // namespace nanhunt::hunt
