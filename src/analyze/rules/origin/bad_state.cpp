// SPDX-License-Identifier: Apache-2.0
// bad_state: a parameter, optimizer state or buffer was not finite, and no watched op had made it so; or state of an
// optimizer is a mean of squares and negative.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();

bool is_unread_state(const ArgSnapshot& arg) { return arg.role == ArgRole::kOverwritten && !arg.known; }

// What is left of state that the origin op updated in place, unread; nullptr: it updated none such.
template <typename F>
const ArgSnapshot* updated_state(const Case& c, F&& is_such) {
  const OpSnapshot& op = c.context->op;
  for (const ArgSnapshot& out : op.outputs) {
    const bool unread = std::any_of(op.inputs.begin(), op.inputs.end(), [&](const ArgSnapshot& in) {
      return (in.slot == out.slot || op.outputs.size() == 1) && is_unread_state(in);
    });
    if (unread && is_such(out)) return &out;
  }
  return nullptr;
}

double scalar_of(const Case& c, const OpSnapshot& op, std::string_view name, double otherwise) {
  for (const ScalarSnapshot& scalar : op.scalars) {
    if (c.text(scalar.name) == name) return scalar.value;
  }
  return otherwise;
}

// All else that it read is finite and no such update makes Inf or NaN of finite numbers: the state was bad before.
bool was_bad_before(const Case& c, const ArgSnapshot& state) {
  const OpSnapshot& op = c.context->op;
  const bool others_finite =
      std::all_of(op.inputs.begin(), op.inputs.end(),
                  [](const ArgSnapshot& in) { return in.known ? in.bad == 0 : in.role == ArgRole::kOverwritten; }) &&
      std::all_of(op.scalars.begin(), op.scalars.end(), [](const ScalarSnapshot& s) { return std::isfinite(s.value); });
  if (!others_finite || c.singular != Singular::kNone) return false;
  const auto is_share = [](double x) { return x >= 0 && x <= 1; };
  switch (c.info->update) {
    case UpdateRule::kDecay:
      return op.inputs.size() == 1 && std::fabs(scalar_of(c, op, "other", kNotGiven)) <= 1;
    case UpdateRule::kLerp:
      return is_share(scalar_of(c, op, "weight", kNotGiven));
    default:
      return state.stats.nan > 0 && (c.info->has(kArithmetic) || c.info->update != UpdateRule::kNotMeasured);
  }
}

// The input of `op` that the sign of its result depends on, where all else can only make it larger.
const ArgSnapshot* sign_giver(const Case& c, const OpSnapshot& op) {
  const OpInfo& info = op_info(c.text(op.op));
  const auto input = [&](std::string_view slot) -> const ArgSnapshot* {
    const auto at = std::find_if(op.inputs.begin(), op.inputs.end(),
                                 [&](const ArgSnapshot& arg) { return c.text(arg.slot) == slot; });
    return at == op.inputs.end() ? nullptr : &*at;
  };
  const auto is_positive = [](const ArgSnapshot* arg) {
    return arg != nullptr && arg->known && arg->bad == 0 && arg->stats.counted() && arg->stats.min >= 0;
  };
  const double other = scalar_of(c, op, "other", kNotGiven);
  bool keeps = false;
  if (info.zero == ZeroRule::kSquareAdd) {
    const ArgSnapshot *a = input("tensor1"), *b = input("tensor2");
    keeps = a != nullptr && b != nullptr && a->value == b->value && scalar_of(c, op, "value", 1) >= 0;
  } else if (info.bound == Bound::kProduct || info.bound == Bound::kQuotient) {
    keeps = op.inputs.size() == 1 ? other > 0 : is_positive(input("other"));
  } else if (info.update == UpdateRule::kSum) {
    keeps = scalar_of(c, op, "alpha", 1) >= 0 && (op.inputs.size() == 1 ? other >= 0 : is_positive(input("other")));
  } else if (info.update == UpdateRule::kLerp) {
    const double weight = scalar_of(c, op, "weight", kNotGiven);
    keeps = weight >= 0 && weight <= 1 && is_positive(input("end"));
  }
  return keeps ? input("self") : nullptr;
}

// A root's argument is negative because state was that nothing watched has made: no sum of squares made it so.
bool was_negative_before(const Case& c) {
  if (c.singular != Singular::kOutside || c.pole == nullptr) return false;
  if (c.info->pole != Pole::kNegative && c.info->pole != Pole::kNonPositive) return false;
  const ArgSnapshot* at = c.pole;
  for (std::size_t i = 0; at != nullptr && i < kMaxSlice; ++i) {
    const auto made_by = static_cast<std::size_t>(at->producer);
    if (at->producer < 0 || made_by >= c.context->slice.size()) return is_unread_state(*at);
    const OpSnapshot& op = c.context->slice[made_by];
    if (op.phase != Phase::kOptimizer) return false;
    at = sign_giver(c, op);
  }
  return false;
}

// What an optimizer read of its state was bad, and no operation that was watched had made it: a checkpoint, as a rule.
std::optional<Diagnosis> diagnose_old_state(const Case& c) {
  if (!c.is_op() || c.birth.kind != BirthKind::kOp || !c.in_optimizer()) return std::nullopt;
  const ArgSnapshot* bad = updated_state(c, [](const ArgSnapshot& out) { return out.bad != 0; });
  if (bad != nullptr && (c.birth.into == 0 || c.birth.into_role.value_or(TensorRole::kState) != TensorRole::kState ||
                         !was_bad_before(c, *bad)))
    return std::nullopt;
  const ArgSnapshot* squares = updated_state(c, [&](const ArgSnapshot& out) {
    const bool is_mean = c.text(out.slot).ends_with("exp_avg_sq");
    return is_mean && out.bad == 0 && out.known && out.stats.counted() && out.stats.min < 0;
  });
  if (bad == nullptr && squares == nullptr && !was_negative_before(c)) return std::nullopt;

  Diagnosis d;
  d.sure = c.birth.at.step == 0;
  const std::string name = c.text(c.birth.into_name);
  const std::string what = !name.empty()        ? "state " + name
                           : c.module().empty() ? std::string("state")
                                                : "state of " + c.module();
  const std::string when = d.sure ? "when the run began" : fmt::format("before step {}", c.birth.at.step);
  const std::string came =
      d.sure ? "it was loaded, from a checkpoint as a rule"
             : "it was loaded, from a checkpoint say, or made in a step whose operations were not kept";
  if (bad != nullptr) {
    const ValueStats& s = bad->stats;
    d.title = fmt::format("The optimizer's {} was bad {}: {}", what, when,
                          bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel));
    d.cause = "state of the optimizer that was not finite";
    d.explanation = fmt::format(
        "{} updates it, and all else that it read was finite. No operation that was watched had made that state "
        "before: {}.",
        c.op(), came);
  } else {
    const double least = squares != nullptr ? squares->stats.min : c.pole->stats.min;
    d.title = fmt::format("A mean of squares in the optimizer's {} was negative {}: {}", what, when, number(least));
    d.cause = "a mean of squares that was negative";
    d.explanation = fmt::format(
        "What adds up squares cannot be negative, and the optimizer takes its root. No operation that was watched had "
        "made that state before: {}. {}.",
        came, made_text(c));
  }
  add_if(d.evidence, c.element_text());
  d.advice = {"sound-state"};
  return d;
}

std::optional<Diagnosis> diagnose_bad_state(const Case& c) {
  if (c.birth.kind != BirthKind::kState) return diagnose_old_state(c);
  const ArgSnapshot& source = c.birth.source;
  const ValueStats& s = source.stats;
  const std::string what = sink_text(c.birth.role, c.module());
  Diagnosis d;
  const std::string count = bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel);
  if (c.birth.was_clean) {
    d.title = fmt::format("The {} became bad between two looks: {}", what, count);
    d.explanation =
        "It was finite when it was last seen, and no watched op has written it since: something unseen did, as code of "
        "the program between steps may.";
    d.sure = false;
  } else if (c.birth.into != 0) {
    d.title = fmt::format("What was loaded into the {} was bad: {}", what, count);
    d.explanation =
        "It was not finite when it was copied there, and no op that was watched made it: a bad checkpoint, or what the "
        "program made of it.";
  } else {
    d.title = fmt::format("The {} was bad from the start: {}", what, count);
    d.explanation =
        "It held non-finite numbers when it was first seen, before any op that was watched had used it: a bad checkpoint, "
        "or what the program made of it before the first step.";
  }
  if (s.first_nonfinite >= 0) {
    const LayoutRecord* layout = c.names.layout(source.layout);
    const auto coords = layout == nullptr ? std::vector<std::int64_t>{} : coords_of(s.first_nonfinite, layout->sizes);
    if (!coords.empty()) d.evidence.push_back(fmt::format("The first bad element is {}.", coords_text(coords)));
  }
  d.advice = {"reload-state"};
  return d;
}

}  // namespace

extern const Rule kBadStateRule{FindingClass::kBadState, diagnose_bad_state};

}  // namespace nanhunt::analyze
