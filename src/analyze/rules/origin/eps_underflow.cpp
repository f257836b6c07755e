// SPDX-License-Identifier: Apache-2.0
// eps_underflow: a constant that guards a denominator, a root or a logarithm rounds to 0 in the format in which it is
// added, so it guards nothing.
#include <fmt/format.h>

#include <cmath>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::string limit_text(double guard, DType stored) {
  const FormatLimits& limits = format_limits(stored);
  return fmt::format("eps {} is 0 in {}: the smallest number {} keeps is {}, and {} or less rounds to 0.",
                     number(guard), dtype_name(stored), dtype_name(stored), number(limits.min_subnormal),
                     number(limits.rounds_to_zero));
}

// "1 - 1e-8": what is just below 1 is a 1 in few digits.
std::string bound_text(double bound) {
  const double below = 1 - std::fabs(bound);
  if (below <= 0 || below > 1e-3) return number(bound);
  return bound > 0 ? "1 - " + number(below) : number(below) + " - 1";
}

std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

std::optional<Diagnosis> lost_guard(const Case& c, double guard, DType stored, const std::string& how) {
  Diagnosis d;
  const std::string owner = c.in_optimizer() ? capitalised(c.optimizer_name()) + " eps" : "The guard constant";
  d.title = fmt::format("{} {} rounds to 0 in {}: {} {}", owner, number(guard), dtype_name(stored), pole_words(c),
                        c.where().empty() ? "in " + c.op() : c.where());
  d.explanation = fmt::format("{} What is 0 stays 0, and {}.", how, made_text(c));
  d.evidence.push_back(limit_text(guard, stored));
  add_if(d.evidence, pole_count_text(c));
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  if (c.in_optimizer()) {
    d.advice = {"fp32-masters", "fused-optimizer", "eps-1e-4"};
  } else {
    d.advice = {"raise-eps", "fp32-compute"};
    d.why.emplace_back("fp32-compute", "What the constant is added to is then in fp32, which holds the sum.");
  }
  return d;
}

std::optional<Diagnosis> diagnose_eps_underflow(const Case& c) {
  if (!c.is_op()) return std::nullopt;
  if (c.singular == Singular::kPole && c.zero.cause == ZeroCause::kGuardLost) {
    const OpSnapshot& op = *c.zero.op;
    const bool limit = c.names.op(op.op).zero == ZeroRule::kClamp;
    return lost_guard(
        c, c.zero.guard, c.zero.stored,
        fmt::format("{} {} {} and stores the result in {}, where it is 0.", c.text(op.op),
                    limit ? "raises what is less to" : "adds", number(c.zero.guard), dtype_name(c.zero.stored)));
  }
  if (c.singular == Singular::kPole) {
    if (auto bound = diagnose_rounded_bound(c)) return bound;
  }
  // A kernel that adds eps itself (norm layers, fused optimizers), in its compute format.
  const ScalarSnapshot* eps = c.scalar("eps");
  std::optional<DType> deviations;
  for (const ArgSnapshot& out : c.context->op.outputs) {
    if (holds_deviations(c.text(out.slot))) deviations = dtype_of(out, c.names, DType::kF32);
  }
  const DType compute = eps_dtype(*c.info, c.context->op.compute_dtype, deviations);
  if (eps != nullptr && eps->value > 0 && is_floating(compute) && round_to(compute, eps->value) == 0 &&
      c.inputs_finite()) {
    return lost_guard(c, eps->value, compute, fmt::format("{} forms x + eps in {}.", c.op(), dtype_name(compute)));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Diagnosis> diagnose_rounded_bound(const Case& c) {
  const RoundedBound& bound = c.bound;
  if (bound.op == nullptr) return std::nullopt;
  const std::string format(dtype_name(bound.format));
  const std::string call =
      fmt::format("{}({} = {})", c.names.op(bound.op->op).name, c.text(bound.name), bound_text(bound.bound));
  Diagnosis d;
  d.title = fmt::format("{} is {} in {}: {} {}", call, number(bound.stored), format, pole_words(c),
                        c.where().empty() ? "in " + c.op() : c.where());
  d.cause = fmt::format("{}: in {} that is {}", call, format, number(bound.stored));
  d.explanation = fmt::format("{}: in {} that is {}, which keeps nothing from the pole. {}.", call, format,
                              number(bound.stored), made_text(c));
  const std::string& site = c.text(bound.op->call_site);
  if (!site.empty()) d.evidence.push_back(fmt::format("{} stands at {}.", call, site));
  add_if(d.evidence, pole_count_text(c));
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  d.advice = {"held-bound"};
  for (std::string& id : denominator_advice(c)) {
    if (id == "with-logits" || id == "log-softmax") d.advice.insert(d.advice.begin(), std::move(id));
  }
  return d;
}

extern const Rule kEpsUnderflowRule{FindingClass::kEpsUnderflow, diagnose_eps_underflow};

}  // namespace nanhunt::analyze
