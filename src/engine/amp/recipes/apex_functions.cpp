// SPDX-License-Identifier: Apache-2.0
// Functions of a user's own on the lists of Apex O1: amp.half_function, amp.float_function, amp.promote_function.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "nanhunt/engine/amp.h"
#include "nanhunt/engine/ops.h"
#include "nanhunt/engine/recipes.h"
#include "src/engine/amp/dispatch.h"
#include "src/engine/ops/op.h"

namespace nanhunt::engine {
namespace {

// Where Apex's patches are on.
bool is_active() { return autocast_enabled() && autocast_state().lists == CastLists::kApex; }

// Of `inputs` those that are cast: floating ones but fp64, as everywhere in the engine.
bool is_cast(const Tensor& input) {
  return input.defined() && is_floating(input.dtype()) && input.dtype() != DType::kF64;
}

std::vector<Tensor> to_float(std::vector<Tensor> inputs) {
  for (Tensor& input : inputs) {
    if (is_cast(input)) input = to(input, DType::kF32);
  }
  return inputs;
}

std::vector<Tensor> to_half(std::vector<Tensor> inputs) {
  for (Tensor& input : inputs) input = amp::detail::cast_argument(input, autocast_dtype());
  return inputs;
}

std::vector<Tensor> promoted(std::vector<Tensor> inputs) {
  const auto any = [&](DType dtype) {
    return std::ranges::any_of(inputs, [=](const Tensor& x) { return x.defined() && x.dtype() == dtype; });
  };
  const bool half = any(DType::kF16), single = any(DType::kF32);
  if (any(DType::kF64) && (half || single)) {
    throw std::invalid_argument("Do not know how to handle these types to promote: fp64 and others");
  }
  return half && single ? to_float(std::move(inputs)) : inputs;
}

template <typename Cast>
TensorFunction wrapped(TensorFunction function, Cast cast) {
  if (!function) fail("amp function", "a function", "none");
  return [function = std::move(function), cast](const std::vector<Tensor>& inputs) {
    return function(is_active() ? cast(inputs) : inputs);
  };
}

}  // namespace

TensorFunction apex_half_function(TensorFunction function) { return wrapped(std::move(function), to_half); }
TensorFunction apex_float_function(TensorFunction function) { return wrapped(std::move(function), to_float); }
TensorFunction apex_promote_function(TensorFunction function) { return wrapped(std::move(function), promoted); }

}  // namespace nanhunt::engine
