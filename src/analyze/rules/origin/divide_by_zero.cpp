// SPDX-License-Identifier: Apache-2.0
// divide_by_zero: poles. 1/0, 0/0, log 0, an infinite derivative such as that of sqrt at 0, a mean over nothing.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// A kernel that would add eps itself was given none, and what it divides by shows among its results: the second moment
// of a fused optimizer, the reciprocal deviation of a norm.
const ArgSnapshot* unguarded(const Case& c) {
  const ScalarSnapshot* eps = c.scalar("eps");
  if (eps == nullptr || eps->value != 0 || !c.inputs_finite()) return nullptr;
  for (const ArgSnapshot& out : c.context->op.outputs) {
    const std::string& slot = c.text(out.slot);
    if (slot == "exp_avg_sq" && out.stats.zero > 0) return &out;
    if (holds_deviations(slot) && out.stats.inf() > 0) return &out;
  }
  return nullptr;
}

std::optional<Diagnosis> without_guard(const Case& c, const ArgSnapshot& shown) {
  Diagnosis d;
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  d.title = fmt::format("{} divides by 0: its eps is 0", place);
  d.cause = "a division by 0, for eps is 0";
  d.explanation = fmt::format("Without eps nothing keeps the denominator from 0, and {}.", made_text(c));
  d.evidence.push_back(shown.stats.inf() > 0
                           ? fmt::format("{} holds {}.", c.text(shown.slot), count_of(shown.stats.inf(), "Inf"))
                           : fmt::format("{} holds {}.", c.text(shown.slot), count_of(shown.stats.zero, "zero")));
  add_if(d.evidence, range_text(c));
  d.advice = {c.in_optimizer() ? "optimizer-eps" : "raise-eps"};
  return d;
}

// What an optimizer divides by, made of ops: a root of its state that nothing was added to, or 0. Walks back from the
// denominator to the root; a constant that its format keeps would have kept the denominator from 0.
struct BareRoot {
  bool there = false, zero_added = false;
};
BareRoot bare_root(const Case& c) {
  BareRoot found;
  if (!c.in_optimizer() || c.pole == nullptr) return found;
  const ArgSnapshot* at = c.pole;
  for (std::size_t ops = 0; ops < kMaxSlice && at->producer >= 0; ++ops) {
    const OpSnapshot& op = c.context->slice[static_cast<std::size_t>(at->producer)];
    const OpInfo& info = c.names.op(op.op);
    if (info.pole == Pole::kNegative) return {true, found.zero_added};
    const bool plain = info.zero == ZeroRule::kSame || info.zero == ZeroRule::kAdd;
    if (!plain || op.inputs.size() != 1) return {};
    if (info.zero == ZeroRule::kAdd) found.zero_added = true;
    at = &op.inputs.front();
  }
  return {};
}

Diagnosis without_eps(const Case& c, bool zero_added) {
  Diagnosis d;
  const std::string name = c.optimizer_name();
  d.title = zero_added ? fmt::format("{}: {}, for {} eps is 0", c.op() + " " + c.where(), pole_words(c), name)
                       : fmt::format("{}: {}, for the optimizer adds no eps", c.op() + " " + c.where(), pole_words(c));
  d.cause = zero_added ? fmt::format("a division by 0, for {} eps is 0", name) : "a division by 0, for there is no eps";
  d.explanation = fmt::format("Without eps nothing keeps the root of a mean of squares from 0, and {}.", made_text(c));
  add_if(d.evidence, pole_count_text(c));
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  d.advice = {"optimizer-eps"};
  return d;
}

// The zeros came of exponentials that are too small for their format.
std::string lost_exponentials_text(const Case& c) {
  const OpSnapshot* op = lost_exponentials(c);
  if (op == nullptr) return "";
  const ArgSnapshot& exponent = op->inputs.front();
  const ValueStats& out = op->outputs.front().stats;
  const std::string site = op->call_site == 0 ? "" : fmt::format(" ({})", c.text(op->call_site));
  const bool counted = exponent.known && exponent.stats.counted();
  return fmt::format(" {} of {} results of {}{} are 0: their exponents{} are too small for {}.", out.zero, out.numel,
                     c.text(op->op), site, counted ? fmt::format(", down to {},", number(exponent.stats.min)) : "",
                     dtype_name(dtype_of(op->outputs.front(), c.names, op->compute_dtype)));
}

Diagnosis without_labels(const Case& c, const ArgSnapshot& labels) {
  Diagnosis d;
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  d.cause = "0/0: a mean over no label";
  d.title = fmt::format("{} divides a loss by its number of labels: 0/0", place);
  d.explanation = fmt::format(
      "Every label of this batch is the ignored index {}, so the loss is a sum of nothing, divided by 0 labels.",
      number(labels.stats.min));
  d.evidence.push_back(fmt::format("Of {} all are ignored.", count_of(labels.stats.numel, "label")));
  add_if(d.evidence, range_text(c));
  d.advice = {"skip-unlabelled"};
  return d;
}

// A table of class weights with zeros, of which the labels picked nothing else, where what divides is their sum.
const ArgSnapshot* weights_of_labels(const Case& c) {
  if (c.pole == nullptr || c.info->bound != Bound::kQuotient) return nullptr;
  const OpSnapshot* sum = maker_of(c, *c.pole);
  if (sum == nullptr || c.names.op(sum->op).bound != Bound::kReduceSum || sum->inputs.empty()) return nullptr;
  const OpSnapshot* pick = maker_of(c, sum->inputs.front());
  if (pick == nullptr || !c.names.op(pick->op).has(kSelects) || pick->inputs.size() != 2) return nullptr;
  const ArgSnapshot &table = pick->inputs.front(), &picked = sum->inputs.front();
  const bool by_label = pick->inputs.back().role == ArgRole::kIndex;
  const bool some = table.stats.zero > 0 && table.stats.zero < table.stats.numel;
  const bool nothing = picked.stats.numel > 0 && picked.stats.zero == picked.stats.numel;
  return by_label && table.known && some && picked.known && nothing ? &table : nullptr;
}

Diagnosis without_weight(const Case& c, const ArgSnapshot& weights, const std::string& place) {
  Diagnosis d;
  d.cause = "0/0: a mean over labels whose class weights are 0";
  d.title = fmt::format("{} divides by the class weights of its labels, which are all 0", place);
  d.explanation =
      "The mean is weighted: what is added up is divided by the sum of the class weights of the labels. Every label "
      "that counts is of a class with weight 0, so that sum is 0.";
  d.evidence.push_back(fmt::format("{} holds {} of {}.", arg_text(c, weights), count_of(weights.stats.zero, "zero"),
                                   weights.stats.numel));
  add_if(d.evidence, range_text(c));
  d.advice = {"weigh-classes"};
  return d;
}

std::string finite_but_for_derivative(const std::string& forward, const Case& c) {
  const bool infinite = c.output->stats.inf() > 0;
  return fmt::format("The forward {} is finite, its derivative is not: {}.{}", forward, made_text(c),
                     infinite ? " The next op of backward turns Inf into NaN where it multiplies by 0." : "");
}

std::optional<Diagnosis> diagnose_divide_by_zero(const Case& c) {
  if (c.is_op()) {
    if (const ArgSnapshot* shown = unguarded(c)) return without_guard(c, *shown);
  }
  if (!c.is_op() || c.singular != Singular::kPole) return std::nullopt;
  if (const BareRoot root = bare_root(c); root.there) return without_eps(c, root.zero_added);
  if (auto bound = diagnose_rounded_bound(c)) return bound;
  if (c.context->ignored_labels) return without_labels(c, *c.context->ignored_labels);
  Diagnosis d;
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  d.advice = denominator_advice(c);
  d.cause = pole_words(c);
  if (const ArgSnapshot* weights = weights_of_labels(c)) return without_weight(c, *weights, place);
  if (c.info->pole == Pole::kLabels && weighs_nothing(c)) return without_weight(c, *c.input("weight"), place);
  if (c.info->pole == Pole::kLabels) {
    d.cause = "0/0: a mean over no label";
    d.title = fmt::format("{} averages over no valid label: 0/0", place);
    const ScalarSnapshot* ignore = c.scalar("ignore_index");
    d.explanation = fmt::format("Every label of this batch is {}, so the mean divides by 0 labels.",
                                ignore == nullptr ? "ignored" : "the ignored index " + number(ignore->value));
    d.evidence.push_back(
        fmt::format("{} holds {}, all ignored.", arg_text(c, *c.pole), count_of(c.pole->stats.numel, "label")));
    add_if(d.evidence, range_text(c));
    return d;
  }
  if (c.info->pole == Pole::kFew) {
    d.cause = "0/0: the variance of one element";
    const double elements = elements_of_one(c);
    d.title = fmt::format("{} is given {} for each result: 0/0", place, count_of(static_cast<std::int64_t>(elements), "element"));
    d.explanation = fmt::format(
        "It divides by the number of elements less its correction ({}, the default is 1), which leaves nothing. {}.",
        c.scalar("correction") == nullptr ? "1" : number(c.scalar("correction")->value), made_text(c));
    add_if(d.evidence, range_text(c));
    return d;
  }
  if (c.info->pole == Pole::kMatrix) {
    d.cause = "a matrix without an inverse";
    d.title = fmt::format("{}: the matrix {} has no inverse", place, arg_text(c, *c.pole));
    d.explanation = fmt::format("Its determinant is 0, as far as {} can say: of rows that are alike, of a row or column of zeros, of fewer "
                                "data than rows. {} of finite inputs.",
                                dtype_name(dtype_of(*c.pole, c.names, DType::kF32)), made_text(c));
    add_if(d.evidence, range_text(c));
    return d;
  }
  if (c.info->pole == Pole::kEmpty) {
    d.cause = "0/0: a mean over nothing";
    d.title = fmt::format("{} averages over no element: 0/0", place);
    d.explanation = fmt::format("Nothing was left to average. {}.", made_text(c));
    return d;
  }
  const std::string forward = forward_op(c.op());
  if (c.context->derivative_of) {
    const OpSnapshot& of = *c.context->derivative_of;
    const ArgSnapshot* out = of.outputs.empty() ? nullptr : &of.outputs.front();
    const bool infinite = out != nullptr && out->known && out->stats.inf() > 0;
    d.title = fmt::format("{}: {}", place, pole_words(c));
    d.part_of = derivative_text(c);
    d.explanation = c.names.op(of.op).pole == Pole::kNonPositive
                        ? fmt::format("The derivative divides by what {} was given, which is 0. {} of finite inputs.",
                                      c.text(of.op), made_text(c))
                    : infinite ? fmt::format("{} of finite inputs.", made_text(c))
                               : finite_but_for_derivative(c.text(of.op), c);
    if (infinite)
      d.explanation += fmt::format(" In {} {} gave {}, which did no harm there.", phase_name(of.phase), c.text(of.op),
                                   bad_count_text(out->stats.nan, out->stats.pos_inf, out->stats.neg_inf, out->stats.numel));
  } else if (!forward.empty() && c.info->name != "div_backward") {
    d.title = fmt::format("{}: {}", place, pole_words(c));
    d.explanation = finite_but_for_derivative(forward, c);
  } else {
    d.title = fmt::format("{}: {}", place, pole_words(c));
    d.explanation = fmt::format("{} of finite inputs.", made_text(c));
  }
  if (divides_by_number_0(c)) {
    d.cause = "a number that is 0 and divides";
    d.explanation += c.scalar("other") != nullptr ? " The divisor is a number of the program's own, and it is 0."
                                                  : " The divisor is a single number that the program holds, and it is 0.";
  }
  d.explanation += lost_exponentials_text(c);
  add_if(d.evidence, pole_count_text(c));
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  return d;
}

}  // namespace

extern const Rule kDivideByZeroRule{FindingClass::kDivideByZero, diagnose_divide_by_zero};

}  // namespace nanhunt::analyze
