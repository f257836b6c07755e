// SPDX-License-Identifier: Apache-2.0
// Which bad steps are worth keeping the operations of. Steps that a loss scaler skips while it looks for its scale are the usual ones,
// and must not use up what a real fault needs later.
#pragma once

#include <cstdint>
#include <optional>

namespace nanhunt::hunt {

struct TriggerOptions {
  std::uint32_t max_triggers = 10;  // of a run
  std::uint32_t distance = 100;  // steps between two within one streak
};

enum class Harm : std::uint8_t {
  kNone = 0,
  kScaled = 1,  // only gradients are bad, and a dynamic loss scaler holds the optimizer back
  kHarm = 2,    // anything else
};

enum class Trigger : std::uint8_t {
  kNone,    // nothing is bad, or this step was taken already
  kTaken,
  kWaits,   // the last step of its streak that was taken is less than `distance` steps ago
  kSpent,   // as many were taken as may be
};

// A skip streak this long is no calibration any more: the scale has fallen by 2^32.
inline constexpr std::uint32_t kLongStreak = 32;

// A streak is a run of bad steps without a good one in between. Its first step is taken, and a later one when it is
// worse than what was seen of the streak, or `distance` steps after the last one taken. Scaled steps get half the triggers.
class TriggerPolicy {
 public:
  explicit TriggerPolicy(const TriggerOptions& options = {}) : options_(options) {}

  // What is known of a step so far, as often as more is known; steps in order.
  Trigger judge(std::uint32_t step, Harm harm);
  std::uint32_t triggers() const { return triggers_; }

 private:
  TriggerOptions options_;
  std::uint32_t triggers_ = 0, scaled_triggers_ = 0;
  std::optional<std::uint32_t> last_bad_, last_taken_;
  std::uint32_t streak_begin_ = 0;
  Harm streak_harm_ = Harm::kNone;  // worst that was judged in it
};

}  // namespace nanhunt::hunt
