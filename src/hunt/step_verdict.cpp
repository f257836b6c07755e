// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/step_verdict.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace nanhunt::hunt {

void StepVerdict::note(TensorRole role, std::string_view path) {
  bad |= role_bit(role);
  ++bad_tensors;
  if (first_role) return;
  first_role = role;
  first_bad = path;
}

void StepVerdict::note_changed(std::string_view path) {
  bad |= kHealthChanged;
  if (first_bad.empty()) first_bad = path;
}

void StepVerdict::note_audited(std::string_view path) {
  bad |= kHealthAudit;
  ++bad_tensors;
  if (first_bad.empty()) first_bad = path;
}

Harm StepVerdict::harm(bool held_back) const {
  if ((bad & ~kLoadedBits) == 0) return Harm::kNone;  // what was loaded has done nothing so far
  return held_back && !kept && bad == role_bit(TensorRole::kBoundaryGradient) ? Harm::kScaled : Harm::kHarm;
}

ReplayTrigger StepVerdict::trigger() const {
  if ((bad & kHealthChanged) != 0) return ReplayTrigger::kChanged;
  if (!first_role) return (bad & kHealthAudit) != 0 ? ReplayTrigger::kAudit : ReplayTrigger::kUser;
  switch (*first_role) {
    case TensorRole::kLoss: return ReplayTrigger::kLoss;
    case TensorRole::kBoundaryGradient: return ReplayTrigger::kGradient;
    case TensorRole::kParameter: return ReplayTrigger::kParameter;
    case TensorRole::kState: return ReplayTrigger::kState;
    case TensorRole::kBuffer: return ReplayTrigger::kBuffer;
    case TensorRole::kBatch:
    case TensorRole::kLabel: return ReplayTrigger::kBatch;
    case TensorRole::kOutput: return ReplayTrigger::kLoss;
  }
  return ReplayTrigger::kUser;
}

ReplayEvent StepVerdict::replayed(std::uint32_t step, ReplayResult result, std::string_view text) const {
  ReplayEvent event;
  event.step = step;
  event.trigger = trigger();
  event.result = result;
  event.text = text;
  return event;
}

HealthEvent StepVerdict::health(std::uint32_t step, double gradient_norm, double weight_norm) const {
  HealthEvent event;
  event.step = step;
  event.bad = bad;
  event.bad_tensors = bad_tensors;
  event.first_bad = first_bad;
  event.gradient_norm = gradient_norm;
  event.weight_norm = weight_norm;
  return event;
}

double NormSum::norm() const { return any_ ? std::sqrt(sum_) : std::numeric_limits<double>::quiet_NaN(); }

AfterBadStep ReplayPolicy::judge(std::uint32_t step, Harm harm) {
  const Trigger answer = policy_.judge(step, harm);
  if (answer == Trigger::kNone || answer == Trigger::kWaits) return {};
  if (answer == Trigger::kSpent) {
    const bool told = last_spent_ && step <= *last_spent_ + 1;  // once a streak
    last_spent_ = step;
    if (told) return {};
    return {true, fmt::format("No replay is left for this step: {} of at most {} were made, and half of them are kept "
                              "from steps that the loss scaler skips.",
                              policy_.triggers(), options_.max_triggers)};
  }
  return {true, replays_ ? "" : "Replays are switched off (WatchOptions::replay)."};
}

}  // namespace nanhunt::hunt
