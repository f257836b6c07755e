// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/result_size.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace nanhunt::analyze {
namespace {

// The exact result of an elementwise op at one element, from the numbers that met there. nullopt: not known.
std::optional<double> result_at(const Case& c, const EvidenceRecord& element) {
  std::optional<double> self, other;
  for (const Operand& operand : element.operands) {
    if (c.text(operand.slot) == "self") self = operand.number;
    if (c.text(operand.slot) == "other") other = operand.number;
  }
  if (const ScalarSnapshot* scalar = c.scalar("other"); scalar != nullptr && !other) other = scalar->value;
  if (const ScalarSnapshot* scalar = c.scalar("exponent"); scalar != nullptr && !other) other = scalar->value;
  const ScalarSnapshot* alpha = c.scalar("alpha");
  const double factor = alpha == nullptr ? 1 : alpha->value;
  if (!self) return std::nullopt;
  if (c.info->bound == Bound::kExp) return c.info->name == "exp2" ? std::exp2(*self) : std::exp(*self);
  if (!other) return std::nullopt;
  if (c.info->bound == Bound::kProduct) return *self * *other;
  if (c.info->bound == Bound::kQuotient && *other != 0) return *self / *other;
  if (c.info->bound == Bound::kPower) return std::pow(*self, *other);
  if (c.info->zero == ZeroRule::kAdd) return c.info->has(kSubtracts) ? *self - factor * *other : *self + factor * *other;
  return std::nullopt;
}

}  // namespace

Fit ResultSize::fit(DType dtype) const {
  const double limit = format_limits(dtype).overflows_from;
  return at_most < limit ? Fit::kYes : at_least >= limit ? Fit::kNo : Fit::kUnknown;
}

ResultSize compute_result_size(const Case& c) {
  ResultSize size;
  size.at_most = magnitude_bound(c);
  for (const EvidenceRecord* element : c.elements) {
    const auto result = result_at(c, *element);
    if (result && !std::isnan(*result)) size.at_least = std::max(size.at_least, std::fabs(*result));
  }
  const ArgSnapshot* self = c.input("self");
  const bool counted = self != nullptr && self->known && self->bad == 0 && self->stats.counted();
  if (counted && c.info->bound == Bound::kExp) {  // the largest argument gives the largest result
    const double largest = c.info->name == "exp2" ? std::exp2(self->stats.max) : std::exp(self->stats.max);
    size.at_least = std::max(size.at_least, largest);
    size.at_most = c.info->name == "exp2" ? largest : std::max(largest, 1.0);
  }
  const std::string forward = forward_op(c.op());
  if ((forward.empty() ? *c.info : op_info(forward)).has(kBilinear))
    size.at_most = std::min(size.at_most, bilinear_bound(c));
  size.at_most = std::max(size.at_most, size.at_least);
  return size;
}

}  // namespace nanhunt::analyze
