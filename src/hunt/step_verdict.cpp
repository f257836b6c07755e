// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/step_verdict.h"

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

Harm StepVerdict::harm(bool held_back) const {
  const std::uint32_t made = bad & ~kLoadedBits;
  if (made == 0) return Harm::kNone;  // what was loaded has done nothing so far
  return held_back && !kept && made == role_bit(TensorRole::kBoundaryGradient) ? Harm::kScaled : Harm::kHarm;
}

HealthEvent StepVerdict::health(std::uint32_t step, double gradient_norm, std::uint64_t weight_checksum) const {
  HealthEvent event;
  event.step = step;
  event.bad = bad;
  event.bad_tensors = bad_tensors;
  event.first_bad = first_bad;
  event.gradient_norm = gradient_norm;
  event.weight_norm = std::numeric_limits<double>::quiet_NaN();
  event.weight_checksum = weight_checksum;
  return event;
}

}  // namespace nanhunt::hunt
