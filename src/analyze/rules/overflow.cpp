// SPDX-License-Identifier: Apache-2.0
// overflow: finite numbers whose result is larger than the format holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "src/analyze/rules/registry.h"
#include "src/analyze/text.h"

namespace nanhunt::analyze {
namespace {

// A kernel's own rounding may carry a result slightly past the bound that exact arithmetic gives.
constexpr double kSlack = 1.01;

std::optional<Diagnosis> diagnose(const Case& c) {
  if (!c.is_op() || !is_floating(c.stored)) return std::nullopt;
  if (c.birth.lifecycle == Lifecycle::kTransform || c.birth.deliberate != Deliberate::kNo) return std::nullopt;
  const ValueStats& out = c.output->stats;
  const FormatLimits& limits = format_limits(c.stored);
  const DType compute = is_floating(c.context->op.compute_dtype) ? c.context->op.compute_dtype : c.stored;
  const double bound = magnitude_bound(c);
  const bool stores_inf = out.inf() > 0;
  // NaN of finite inputs: the format has no Inf (fp8), or a sum inside met Inf - Inf in the format it computes in.
  const bool nan_for_inf = out.nan > 0 && !limits.has_inf;
  const bool inf_minus_inf = out.nan > 0 && c.info->has(kAccumulates) &&
                             bound * kSlack >= std::min(format_limits(compute).overflows_from, limits.overflows_from);
  if (!stores_inf && !nan_for_inf && !inf_minus_inf) return std::nullopt;
  if (bound * kSlack < std::min(limits.overflows_from, format_limits(compute).overflows_from))
    return std::nullopt;  // too small to overflow
  const bool narrow = dtype_size(c.stored) <= 2;
  if (!c.info->has(kArithmetic) && !narrow) return std::nullopt;  // an op we know nothing of: could be anything

  Diagnosis d;
  d.sure = c.info->has(kArithmetic);
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  const std::int64_t bad = out.nonfinite();
  d.title = fmt::format("{} overflows {}: {} of {} results exceed {}", place, dtype_name(c.stored), bad, out.numel,
                        number(limits.max_finite));
  d.explanation = fmt::format("Finite inputs, but the result is larger than {}, the largest {} number. {}.",
                              number(limits.max_finite), dtype_name(c.stored), made_text(c));
  if (c.stored != compute && narrow) {
    d.explanation += fmt::format(" The kernel computed it in {}; storing it as {} made it infinite.",
                                 dtype_name(compute), dtype_name(c.stored));
  }
  if (out.counted() && out.amax > 0) {
    d.evidence.push_back(fmt::format("The largest result that still fitted is {}.", number(out.amax)));
  }
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  if (c.info->name.starts_with("exp")) {
    const double from = c.info->name == "exp2" ? std::log2(limits.overflows_from) : std::log(limits.overflows_from);
    d.evidence.push_back(fmt::format("{} passes {} at {}.", c.info->name, number(limits.max_finite), number(from)));
    d.advice = narrow ? std::vector<std::string>{"clamp-input", "bf16", "fp32-compute"}
                      : std::vector<std::string>{"clamp-input", "lower-magnitude"};
  } else if (c.stored == DType::kF16) {
    d.advice = {"fp32-compute", "bf16"};
  } else {
    d.advice = narrow ? std::vector<std::string>{"fp32-compute"} : std::vector<std::string>{"lower-magnitude"};
  }
  return d;
}

}  // namespace

extern const Rule kOverflowRule{FindingClass::kOverflow, diagnose};

}  // namespace nanhunt::analyze
