// SPDX-License-Identifier: Apache-2.0
// What is known to be bad in one step, in the order in which it was found, and how much harm that is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanhunt/event.h"
#include "src/hunt/trigger_policy.h"

namespace nanhunt::hunt {

struct StepVerdict {
  std::uint32_t bad = 0, bad_tensors = 0;  // bad: bits of tensor roles
  std::string first_bad;
  std::optional<TensorRole> first_role;
  bool kept = false;  // gradients were bad before the step added to them: no scale calibrates that away

  void note(TensorRole role, std::string_view path);
  // It was bad when the step began: the cause, whatever was found so far; what lasts before the batch.
  void note_older(TensorRole role, std::string_view path);

  // `held_back`: a dynamic loss scaler skips the optimizer where gradients are bad.
  Harm harm(bool held_back) const;
  // `gradient_norm`: a 2-norm; NaN: not known. `weight_checksum`: 0: not read.
  HealthEvent health(std::uint32_t step, double gradient_norm, std::uint64_t weight_checksum) const;  // borrows this
};

}  // namespace nanhunt::hunt
