// SPDX-License-Identifier: Apache-2.0
// What a program asks about before it goes on: torch.isfinite, isnan and isinf. The first is a comparison of a tensor
// with itself, and of magnitudes with infinity.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "hooks/torch/tap/describe.h"
#include "hooks/torch/tap/numbers.h"
#include "hooks/torch/tap/plan.h"
#include "hooks/torch/tap/rows/words.h"

namespace nanhunt::tap {

// Of an op that asks whether numbers are finite: those; null: it does not.
inline const at::Tensor* asked_about(const Plan& plan, c10::ArrayRef<c10::IValue> args) {
  if (!plan.asks || !args[0].isTensor() || !args[0].toTensor().defined()) return nullptr;
  const at::Tensor& t = args[0].toTensor();
  if (args.size() == 1) return &t;
  if (args[1].isTensor() && args[1].toTensor().is_same(t)) return &t;
  double number = 0;
  return number_of(args[1], number) && std::isinf(number) ? &t : nullptr;
}

// Whether an input of the op requires a gradient, as those of a loss do and a constant mask does not.
inline bool requires_grad(const std::vector<c10::IValue>& args) {
  bool found = false;
  for (const c10::IValue& value : args) each_tensor(value, [&](const at::Tensor& t) { found = found || t.requires_grad(); });
  return found;
}

// Whether the program is about to learn, of what it computed and may train, that it is not finite. -Inf is what scores
// are masked with. On a device it is not known.
inline bool learns_of_bad(const Plan& plan, c10::ArrayRef<c10::IValue> args, Describer& describer, const Recording& to) {
  const at::Tensor* const asked = asked_about(plan, args);
  if (asked == nullptr || to.read == nullptr || !asked->requires_grad() || !asked->device().is_cpu()) return false;
  const std::optional<Quad> quad = describer.describe(*asked, true);
  if (!quad || quad->data == 0) return false;
  const std::int64_t pair[] = {quad->data, quad->layout};
  nanhunt_reading reading{};
  std::size_t bad = 0;
  return to.read(to.self, pair, 1, 0, &reading, &bad) == NANHUNT_OK &&
         (reading.bad & (NANHUNT_HAS_NAN | NANHUNT_HAS_POS_INF)) != 0;
}

}  // namespace nanhunt::tap
