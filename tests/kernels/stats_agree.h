// SPDX-License-Identifier: Apache-2.0
// Whether the device's statistics of a tensor are the CPU's: counts and extrema bit for bit, sums within both
// contracts.
#pragma once

#include <cmath>
#include <sstream>
#include <string>

#include "nanhunt/tensor_stats.h"

namespace nanhunt::testing_support {

// Empty where they agree, else what differs, "got / want".
inline std::string disagreement(TensorStats got, const TensorStats& want) {
  std::ostringstream out;
  out.precision(17);
  const auto show = [&](const char* name, auto a, auto b) {
    if (a != b) out << " " << name << " " << a << " / " << b;
  };
  const auto close = [](double a, double b, double scale) {
    return a == b || (std::isfinite(a) && std::isfinite(b) && std::abs(a - b) <= 1e-12 * scale);
  };
  const double magnitudes = std::sqrt(static_cast<double>(want.numel)) * std::sqrt(want.sum_sq);  // at least sum |x|
  if (!close(got.sum, want.sum, magnitudes)) show("sum", got.sum, want.sum);
  if (!close(got.sum_sq, want.sum_sq, want.sum_sq)) show("sum_sq", got.sum_sq, want.sum_sq);
  got.sum = want.sum;
  got.sum_sq = want.sum_sq;
  if (got == want) return out.str();
  show("level", static_cast<int>(got.level), static_cast<int>(want.level));
  show("numel", got.numel, want.numel);
  show("first", got.first_nonfinite, want.first_nonfinite);
  show("nan", got.nan, want.nan);
  show("pos_inf", got.pos_inf, want.pos_inf);
  show("neg_inf", got.neg_inf, want.neg_inf);
  show("zero", got.zero, want.zero);
  show("subnormal", got.subnormal, want.subnormal);
  show("amax", got.amax, want.amax);
  show("amin", got.amin_nonzero, want.amin_nonzero);
  show("min", got.min, want.min);
  show("max", got.max, want.max);
  for (std::size_t i = 0; i < got.what_if.size(); ++i) {
    show("overflow", got.what_if[i].overflow, want.what_if[i].overflow);
    show("flush", got.what_if[i].flush_to_zero, want.what_if[i].flush_to_zero);
    show("subnormal there", got.what_if[i].subnormal, want.what_if[i].subnormal);
  }
  show("lowest binade", got.histogram_min_exponent, want.histogram_min_exponent);
  if (got.histogram != want.histogram) out << " histogram";
  return out.str();
}

}  // namespace nanhunt::testing_support
