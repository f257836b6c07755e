// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/step_verdict.h"

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

void StepVerdict::note_older(TensorRole role, std::string_view path) {
  const auto lasts = [](TensorRole one) { return one == TensorRole::kParameter || one == TensorRole::kState; };
  if (!first_role || !lasts(*first_role)) {
    first_role = role;
    first_bad = path;
  }
  note(role, path);
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
  const std::uint32_t made = bad & ~kLoadedBits;
  if (made == 0) return Harm::kNone;  // what was loaded has done nothing so far
  return held_back && !kept && made == role_bit(TensorRole::kBoundaryGradient) ? Harm::kScaled : Harm::kHarm;
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

}  // namespace nanhunt::hunt
