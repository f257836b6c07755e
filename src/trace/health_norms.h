// SPDX-License-Identifier: Apache-2.0
// Norms of a HealthRecord, told apart from what was not measured.
#pragma once

#include <cmath>
#include <optional>

#include "nanhunt/trace.h"

namespace nanhunt::trace {

// NaN means two things: then the part that the norm is of was found bad, or it was not read.
inline std::optional<double> measured_norm(const HealthRecord& health, double norm, TensorRole of) {
  if (std::isnan(norm) && (health.bad >> static_cast<unsigned>(of) & 1u) == 0) return std::nullopt;
  return norm;
}
inline std::optional<double> measured_gradient_norm(const HealthRecord& health) {
  return measured_norm(health, health.gradient_norm, TensorRole::kBoundaryGradient);
}
inline std::optional<double> measured_weight_norm(const HealthRecord& health) {
  return measured_norm(health, health.weight_norm, TensorRole::kParameter);
}

}  // namespace nanhunt::trace
