// SPDX-License-Identifier: Apache-2.0
// overflow: finite numbers whose result is larger than the format holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "src/analyze/rules/registry.h"
#include "src/analyze/rules/result_size.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// A kernel's own rounding may carry a result slightly past the bound that exact arithmetic gives.
constexpr double kSlack = 1.01;
constexpr double kLargeExponential = 10;  // of an argument above 2.3

// Was it the format of the result that was too narrow, or the one it was computed in as well?
std::string where_it_ended(const Case& c, DType compute, const ResultSize& size) {
  switch (size.fit(compute)) {
    case Fit::kYes:
      return fmt::format("The kernel computed it in {}; storing it as {} made it infinite.", dtype_name(compute),
                         dtype_name(c.stored));
    case Fit::kNo:
      return fmt::format("The kernel computes in {}, which cannot hold the largest of them either.",
                         dtype_name(compute));
    case Fit::kUnknown:
      break;
  }
  return fmt::format("The kernel computes in {}, where the result may still have been finite, and stores {}.",
                     dtype_name(compute), dtype_name(c.stored));
}

// Of sums inside whose bound is not known: a product of two of the largest inputs, as often as there are elements.
double usual_bound(const Case& c) {
  double largest = 0, terms = 1;
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (!arg.known || !arg.stats.counted() || arg.role == ArgRole::kMask || arg.role == ArgRole::kIndex) continue;
    largest = std::max(largest, arg.stats.amax);
    terms = std::max(terms, static_cast<double>(arg.stats.numel));
  }
  return terms * largest * largest;
}

// Where an exponential passes `limit`.
double argument_at(const OpInfo& info, double limit) {
  return info.name == "exp2" ? std::log2(limit) : std::log(limit);
}

// What the first bad element was divided by, where that is so small that it alone takes a quarter of the format's binades.
std::optional<double> vanishing_divisor(const Case& c, double max_finite) {
  if (c.info->bound != Bound::kQuotient || c.pole == nullptr) return std::nullopt;
  for (const EvidenceRecord* element : c.elements) {
    for (const Operand& operand : element->operands) {
      const double size = std::fabs(operand.number);
      if (operand.slot == c.pole->slot && size > 0 && size <= std::pow(max_finite, -0.25)) return operand.number;
    }
  }
  return std::nullopt;
}

// A function that grows as exponentials do, whose result goes into a logarithm.
bool goes_into_logarithm(const Case& c) {
  const std::string_view name = c.info->name;
  const bool grows = c.info->bound == Bound::kExp || name == "cosh" || name == "sinh" || name == "i0" || name == "i1";
  const auto& nodes = c.birth.chain.nodes;
  const auto reader = std::find_if(nodes.begin(), nodes.end(), [](const ChainNode& node) {
    const Bound bound = op_info(node.op).bound;
    return node.role == "carrier" && bound != Bound::kSum && bound != Bound::kReduceSum;
  });
  return grows && reader != nodes.end() && op_info(reader->op).pole == Pole::kNonPositive;
}

// Of a softmax, or a sigmoid, that the program takes by hand, exp(x) / exp(x).sum(): of two infinities it is NaN.
std::vector<std::string> by_hand_advice(const Case& c) {
  const auto& [nodes, edges, omitted] = c.birth.chain;
  const auto computes = [](const ChainNode& node) { return node.role == "carrier" && node.phase <= Phase::kLoss; };
  if (c.info->name != "exp" || c.birth.at.phase > Phase::kLoss) return {};
  const auto quotient = std::find_if(edges.begin(), edges.end(), [&](const ChainEdge& edge) {
    const ChainNode &from = nodes[static_cast<std::size_t>(edge.from)], &to = nodes[static_cast<std::size_t>(edge.to)];
    return op_info(from.op).name == c.info->name && computes(to) && to.nan > 0 && op_info(to.op).bound == Bound::kQuotient;
  });
  if (quotient == edges.end()) return {};
  const bool in_logarithm = std::any_of(nodes.begin() + quotient->to, nodes.end(), [&](const ChainNode& node) {
    return computes(node) && op_info(node.op).pole == Pole::kNonPositive;
  });
  // In a logarithm a limit would take gradients away.
  if (in_logarithm) return {"log-softmax", "with-logits"};
  return {"subtract-largest", "clamp-input"};
}

// The largest exponential that the numbers came of, as far as ops were walked back.
const OpSnapshot* exponential_before(const Case& c) {
  const OpSnapshot* found = nullptr;
  for (const OpSnapshot& op : c.context->slice) {
    if (c.names.op(op.op).bound != Bound::kExp || op.outputs.empty() || !op.outputs.front().stats.counted()) continue;
    if (op.outputs.front().stats.amax < kLargeExponential) continue;
    if (found == nullptr || op.outputs.front().stats.amax > found->outputs.front().stats.amax) found = &op;
  }
  return found;
}

std::optional<Diagnosis> diagnose_overflow(const Case& c) {
  if (!c.is_op() || !is_floating(c.stored)) return std::nullopt;
  if (c.birth.lifecycle == Lifecycle::kTransform || c.birth.deliberate != Deliberate::kNo) return std::nullopt;
  if (c.info->bound == Bound::kQuotient && c.pole != nullptr && !c.pole->known) return std::nullopt;  // 0, perhaps
  const ValueStats& out = c.output->stats;
  const FormatLimits& limits = format_limits(c.stored);
  const DType compute = is_floating(c.context->op.compute_dtype) ? c.context->op.compute_dtype : c.stored;
  const double bound = magnitude_bound(c);
  const bool stores_inf = out.inf() > 0;
  // NaN of finite inputs: the format has no Inf (fp8), or a sum inside met Inf - Inf in the format it computes in.
  const bool nan_for_inf = out.nan > 0 && !limits.has_inf;
  const double inside = c.info->bound == Bound::kUnknown ? usual_bound(c) : bound;
  const bool inf_minus_inf = out.nan > 0 && c.info->has(kAccumulates) &&
                             inside * kSlack >= std::min(format_limits(compute).overflows_from, limits.overflows_from);
  if (!stores_inf && !nan_for_inf && !inf_minus_inf) return std::nullopt;
  if (bound * kSlack < std::min(limits.overflows_from, format_limits(compute).overflows_from))
    return std::nullopt;  // too small to overflow
  const bool narrow = dtype_size(c.stored) <= 2;
  if (!c.info->has(kArithmetic) && !narrow) return std::nullopt;  // an op we know nothing of: could be anything

  Diagnosis d;
  d.sure = c.info->has(kArithmetic) && (stores_inf || nan_for_inf || c.info->bound != Bound::kUnknown);
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  const std::int64_t bad = out.nonfinite();
  // A kernel that adds up in 16 bits: its results may be as small as they like.
  const bool inside_narrow = !stores_inf && inf_minus_inf && dtype_size(compute) <= 2;
  if (inside_narrow) {
    d.title =
        fmt::format("{} overflows {} inside: {} of {} results are NaN", place, dtype_name(compute), bad, out.numel);
    d.explanation = fmt::format(
        "The kernel computes in {}, its sums too, and one of them passes {}, the largest {} number, though its inputs "
        "are finite. {}.",
        dtype_name(compute), number(format_limits(compute).max_finite), dtype_name(compute), made_text(c));
  } else if (!stores_inf && !nan_for_inf) {
    d.title = fmt::format("{} overflows {} inside: {} of {} results are NaN", place, dtype_name(c.stored), bad, out.numel);
    d.explanation = fmt::format(
        "Finite inputs, but sums inside pass {}, the largest {} number, and infinities of both signs met. {}.",
        number(limits.max_finite), dtype_name(c.stored), made_text(c));
  } else {
    d.title = fmt::format("{} overflows {}: {} of {} results exceed {}", place, dtype_name(c.stored), bad, out.numel,
                          number(limits.max_finite));
    d.explanation = fmt::format("Finite inputs, but the result is larger than {}, the largest {} number. {}.",
                                number(limits.max_finite), dtype_name(c.stored), made_text(c));
  }
  d.cause = fmt::format("a result too large for {}", dtype_name(inside_narrow ? compute : c.stored));
  const ResultSize size = compute_result_size(c);
  if (c.stored != compute && narrow) d.explanation.append(" ").append(where_it_ended(c, compute, size));
  if (out.counted() && out.amax > 0) {
    d.evidence.push_back(fmt::format("The largest result that still fitted is {}.", number(out.amax)));
  }
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  const bool exponential = c.info->bound == Bound::kExp, in_logarithm = goes_into_logarithm(c);
  const std::optional<double> divisor = vanishing_divisor(c, limits.max_finite);
  if (divisor) d.explanation += fmt::format(" The divisor is extreme: {}.", number(*divisor));
  if (exponential) {
    d.evidence.push_back(fmt::format("{} passes {} at {}.", c.info->name, number(limits.max_finite),
                                     number(argument_at(*c.info, limits.overflows_from))));
    d.advice = by_hand_advice(c);
    if (d.advice.empty() && !in_logarithm) d.advice.emplace_back("clamp-input");  // in one a limit would take gradients away
  }
  const bool masks = adds_masks(c);
  if (masks) d.advice.emplace_back("combine-masks");
  if (!narrow) {
    if (masks) return d;
    if (in_logarithm) d.advice.emplace_back("log-form");
    const std::optional<OpSnapshot>& derived = c.context->derivative_of;
    const bool of_logarithm = derived && c.names.op(derived->op).pole == Pole::kNonPositive;
    // The derivative of 1 / x multiplies by the square of the result.
    const bool of_quotient = c.birth.at.phase == Phase::kBackward && is_square(c, c.context->op);
    if (divisor && of_logarithm) {
      d.advice = denominator_advice(c);
    } else if (divisor || of_quotient) {
      d.advice.emplace_back("vanishing-divisor");
    }
    if (const OpSnapshot* exp = exponential ? nullptr : exponential_before(c)) {
      const std::string site = exp->call_site == 0 ? "" : fmt::format(" ({})", c.text(exp->call_site));
      d.explanation += fmt::format(" The numbers came of {}{}, whose results reach {}.", c.text(exp->op), site,
                                   number(exp->outputs.front().stats.amax));
      d.advice.emplace_back("bound-exponent");
    }
    if (!divisor && !in_logarithm && !of_quotient) d.advice.emplace_back("lower-magnitude");
    return d;
  }
  // bf16 has the range of fp32, but for the last of it.
  const Fit wide = size.fit(DType::kF32);
  if (wide == Fit::kNo) {
    const ArgSnapshot* self = c.input("self");
    const std::string why =
        exponential && self != nullptr && self->known && self->stats.counted()
            ? fmt::format("At {} {} passes fp32 and bf16 too (from {} on): no wider format helps.",
                          number(self->stats.max), c.info->name,
                          number(argument_at(*c.info, format_limits(DType::kF32).overflows_from)))
            : fmt::format("The exact result reaches {}: it passes fp32 and bf16 too.", number(size.at_least));
    d.evidence.push_back(why);
    if (d.advice.empty()) d.advice.emplace_back(in_logarithm ? "log-form" : "lower-magnitude");
    d.why.emplace_back(d.advice.front(), why);
    return d;
  }
  // A limit takes the signal out of results that a wider format holds.
  const bool limited = exponential && wide == Fit::kYes;
  if (limited) std::erase(d.advice, "clamp-input");
  d.advice.emplace_back("fp32-compute");
  d.why.emplace_back("fp32-compute",
                     wide == Fit::kYes
                         ? fmt::format("The results fit fp32; only {} cannot hold them.", dtype_name(c.stored))
                         : "The results may fit fp32: how large they are was not recorded.");
  if (c.stored == DType::kF16) d.advice.emplace_back("bf16");
  if (limited) d.advice.emplace_back("clamp-input");
  if (c.stored == DType::kF16 && wide == Fit::kUnknown)
    d.why.emplace_back("bf16", "bf16 has the range of fp32; whether that is enough was not recorded.");
  return d;
}

}  // namespace

extern const Rule kOverflowRule{FindingClass::kOverflow, diagnose_overflow};

}  // namespace nanhunt::analyze
