// SPDX-License-Identifier: Apache-2.0
// invalid: an argument outside the domain (sqrt or log of a negative), or an indeterminate form of infinities that were
// written on purpose (softmax over a row of only -Inf).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// Is there such an op among those that met the infinities: the origin, what led to it, what came of it in forward?
template <typename F>
bool meets(const Case& c, F&& is_such) {
  const auto infinite = [](const ArgSnapshot& arg) { return arg.stats.inf() > 0; };
  const auto before = [&](const OpSnapshot& op) {
    return is_such(c.names.op(op.op)) && (std::any_of(op.inputs.begin(), op.inputs.end(), infinite) ||
                                          std::any_of(op.outputs.begin(), op.outputs.end(), infinite));
  };
  const std::vector<OpSnapshot>& slice = c.context->slice;
  const std::vector<ChainNode>& nodes = c.birth.chain.nodes;
  return is_such(*c.info) || std::any_of(slice.begin(), slice.end(), before) ||
         std::any_of(nodes.begin(), nodes.end(),
                     [&](const ChainNode& node) { return node.phase != Phase::kBackward && is_such(op_info(node.op)); });
}

// Were the infinities a mask's: written into some of the elements, read of a buffer or the batch, or given to a softmax?
bool shows_mask(const Case& c) {
  const std::vector<ArgSnapshot>& read = c.context->op.inputs;
  const bool given = std::any_of(read.begin(), read.end(), [](const ArgSnapshot& arg) {
    return arg.bad != 0 && arg.name != 0 && !arg.is_gradient;
  });
  return given || meets(c, [](const OpInfo& op) {
           return op.has(kMasks) || (op.has(kSoftmax) && !op.has(kLogSums));
         });
}

std::string finite_advice(const Case& c) {
  if (shows_mask(c)) return "finite-mask";
  return meets(c, [](const OpInfo& op) { return op.has(kLogSums); }) ? "finite-log-zero" : "finite-constant";
}

// The inputs that carried the infinities, with how many.
std::string masks_text(const Case& c, bool mask) {
  std::vector<std::string> parts;
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (arg.bad == 0) continue;
    parts.push_back(fmt::format("{} holds {}", arg_text(c, arg),
                                bad_count_text(arg.stats.nan, arg.stats.pos_inf, arg.stats.neg_inf, arg.stats.numel)));
  }
  return parts.empty() ? "" : join(parts, 4) + (mask ? ", written on purpose: a mask." : ", written on purpose.");
}

// " by aten::masked_fill (model.py:12)": the op that wrote the infinities, as far as ops were walked back.
std::string masked_by_text(const Case& c) {
  for (const OpSnapshot& op : c.context->slice) {
    const bool infinite = std::any_of(op.scalars.begin(), op.scalars.end(),
                                      [](const ScalarSnapshot& scalar) { return std::isinf(scalar.value); });
    if (!infinite || !c.names.op(op.op).has(kWritesConstant)) continue;
    return fmt::format(" by {}{}", c.text(op.op), op.call_site == 0 ? "" : fmt::format(" ({})", c.text(op.call_site)));
  }
  return "";
}

// A row that holds nothing but a mask is what the largest, or the smallest, of it is.
bool hands_on_masked_row(const Case& c) {
  return std::any_of(c.context->slice.begin(), c.context->slice.end(), [&](const OpSnapshot& op) {
    if (op.inputs.empty() || op.outputs.empty() || (c.names.op(op.op).flags & (kKeepsMask | kSelects)) == 0)
      return false;
    const ValueStats &in = op.inputs.front().stats, &out = op.outputs.front().stats;
    return in.inf() > 0 && out.inf() > 0 && out.numel < in.numel;
  });
}

// A softmax in its parts, as a compiler computes it: x - x.amax(dim), of a row that holds nothing but a mask.
bool subtracts_largest_of_row(const Case& c) {
  const ArgSnapshot *self = c.input("self"), *other = c.input("other");
  if (c.info->name != "sub" || self == nullptr || other == nullptr || other->stats.neg_inf == 0) return false;
  const OpSnapshot* largest = maker_of(c, *other);
  if (largest == nullptr || largest->inputs.empty() || largest->inputs.front().value != self->value) return false;
  const std::string_view name = c.names.op(largest->op).name;
  return name == "amax" || name == "max";
}

// Which row of a softmax was fully masked: the one that holds the first NaN.
std::string masked_row_text(const Case& c) {
  const LayoutRecord* layout = c.names.layout(c.output->layout);
  if (layout == nullptr || layout->sizes.size() < 2) return "";
  std::vector<std::int64_t> row = coords_of(c.output->stats.first_nonfinite, layout->sizes);
  if (row.empty()) return "";
  const auto rank = static_cast<double>(row.size());
  const ScalarSnapshot* given = c.scalar("dim");
  double dim = given == nullptr ? rank - 1 : given->value;
  if (dim < 0) dim += rank;
  if (!(dim >= 0 && dim < rank)) return "";
  const auto along = static_cast<std::size_t>(dim);
  const std::int64_t length = layout->sizes[along];
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(along));
  std::string text = fmt::format("Every entry of row {} is masked: the first row that is NaN", coords_text(row));
  if (length > 0 && c.output->stats.nan % length == 0) {
    text += fmt::format(" of {}", count_of(c.output->stats.nan / length, "such row"));
  }
  return text + ".";
}

Diagnosis indeterminate(const Case& c, const std::string& place) {
  Diagnosis d;
  const bool mask = c.info->has(kSoftmax) || hands_on_masked_row(c) || shows_mask(c);
  const std::string of_row = c.info->has(kLogSums) ? finite_advice(c) : "keep-one-key";
  if (c.info->has(kSoftmax) && (c.output->bad & kBadNaN) == 0) {
    d.title = fmt::format("{} sums over a row of only -Inf: log 0", place);
    d.cause = "log of 0: a row of which every entry is masked";
    d.explanation = fmt::format("A row in which every entry is masked has the sum 0, whose logarithm is -Inf. {}.", made_text(c));
    d.advice = {of_row};
  } else if (c.info->has(kSoftmax) || subtracts_largest_of_row(c)) {
    d.title = fmt::format("{} meets a row of only -Inf", place);
    d.cause = "softmax of a fully masked row";
    d.explanation = fmt::format("A row in which every entry is masked has no largest number: -Inf - (-Inf) is NaN. {}.",
                                made_text(c));
    d.advice = {of_row};
  } else {
    d.part_of = derivative_text(c);
    const bool derived = !d.part_of.empty();
    const std::string_view those = mask ? "of a mask" : "written on purpose";
    d.title = fmt::format("{}{} turns infinities {} into NaN", place, derived ? ": " + d.part_of : "", those);
    d.cause = fmt::format("{}0 * Inf or Inf - Inf, of {} {}", derived ? d.part_of + ": " : "",
                          mask ? "the infinities" : "infinities", those);
    d.explanation =
        fmt::format("The infinities were written on purpose{}, but 0 * Inf and Inf - Inf have no value. {}.",
                    masked_by_text(c), made_text(c));
    d.advice = {hands_on_masked_row(c) ? "keep-one-key" : finite_advice(c)};
  }
  if (c.info->has(kSoftmax) && (c.output->bad & kBadNaN) != 0) add_if(d.evidence, masked_row_text(c));
  add_if(d.evidence, masks_text(c, mask));
  add_if(d.evidence, c.element_text());
  return d;
}

// An optimizer's factor of weight decay: what it multiplies a parameter by, where an infinite learning rate makes it
// -Inf.
bool is_decay(const Case& c, const ScalarSnapshot& scalar) {
  const ArgSnapshot* self = c.input("self");
  return c.in_optimizer() && c.info->update == UpdateRule::kDecay && c.text(scalar.name) == "other" &&
         !(scalar.value > 0) && self != nullptr && self->role == ArgRole::kOverwritten &&
         c.name_of(*self) == c.module();
}

// x + NaN, x - Inf * g, 0 * Inf: a number that the program gave is not finite itself.
std::optional<Diagnosis> bad_constant(const Case& c, const std::string& place) {
  if (!c.info->has(kArithmetic) || !c.inputs_finite()) return std::nullopt;
  const bool made_nan = (c.output->bad & kBadNaN) != 0;
  for (const ScalarSnapshot& scalar : c.context->op.scalars) {
    if (std::isfinite(scalar.value) || (std::isnan(scalar.value) && !made_nan)) continue;
    const bool decay = is_decay(c, scalar);
    const std::string name = decay ? "1 - lr * weight_decay" : c.text(scalar.name);
    const std::string given = fmt::format("{} = {}", name, number(scalar.value));
    const std::string what = decay
                                 ? "Weight decay multiplies a parameter by 1 - lr * weight_decay: the learning rate is"
                                 : "The constant itself is";
    Diagnosis d;
    if (std::isnan(scalar.value)) {
      d.title = fmt::format("{} is given NaN: {}", place, given);
      d.cause = "a constant that is NaN";
      d.explanation = fmt::format("{} NaN. {}.", what, made_text(c));
      d.advice = {c.in_optimizer() ? "check-lr" : "guard-value"};
    } else if (c.in_optimizer() || !made_nan) {
      d.title = fmt::format("{} is given an infinite number: {}", place, given);
      d.cause = "a constant that is infinite";
      d.explanation = fmt::format("{} infinite. {}.", what, made_text(c));
      d.advice = {c.in_optimizer() ? "check-lr" : "guard-value"};
    } else {
      d.title = fmt::format("{} is given an infinite constant and makes NaN of it: {}", place, given);
      d.cause = "0 * Inf or Inf - Inf, of an infinite constant";
      d.explanation = fmt::format("0 * Inf and Inf - Inf have no value. {}.", made_text(c));
      const ArgSnapshot* self = c.input("self");  // of 0 and 1: (1 - mask) * -Inf
      const bool mask = scalar.value < 0 && c.info->has(kBilinear) && self != nullptr && self->stats.zero > 0 &&
                        self->stats.min == 0 && self->stats.max == 1;
      d.advice = {mask ? "finite-mask" : finite_advice(c)};
    }
    add_if(d.evidence, c.element_text());
    add_if(d.evidence, range_text(c));
    return d;
  }
  return std::nullopt;
}

// A parameter, or a view, a copy or a sum of nothing else.
bool is_of_parameters(const Case& c, const ArgSnapshot& arg) {
  if (arg.is_parameter) return true;
  const OpSnapshot* op = maker_of(c, arg);
  if (op == nullptr || op->inputs.empty()) return false;
  const OpInfo& info = c.names.op(op->op);
  const bool hands_on = info.has(kKeepsMask) && info.pole == Pole::kNone &&
                        (info.bound == Bound::kCopy || info.bound == Bound::kSum || info.bound == Bound::kReduceSum);
  return hands_on && std::all_of(op->inputs.begin(), op->inputs.end(), [&](const ArgSnapshot& in) {
           return in.role == ArgRole::kIndex || is_of_parameters(c, in);
         });
}

// The magnitude of the two numbers whose difference the argument is, where it is no larger than their rounding; 0: it is no
// such difference. One of the two may be gone by now; it was as large.
double cancelled_magnitude(const Case& c) {
  constexpr double kRoundings = 64;
  const OpSnapshot* maker = maker_of(c, *c.pole);
  const DType dtype = dtype_of(*c.pole, c.names, DType::kF32);
  if (maker == nullptr || !c.names.op(maker->op).has(kSubtracts) || maker->inputs.size() != 2 || !is_floating(dtype)) return 0;
  // A mean of squares less the square of a mean is never negative.
  const OpSnapshot* square = maker_of(c, maker->inputs[1]);
  const bool of_squares = square != nullptr && is_square(c, *square);
  double largest = 0, smallest = 0;  // of each number, for it is not known which of them met
  for (const ArgSnapshot& arg : maker->inputs) {
    if (!arg.known || !arg.stats.counted() || arg.stats.zero > 0) continue;
    largest = std::max(largest, arg.stats.amax);
    smallest = std::max(smallest, arg.stats.amin_nonzero);
  }
  const double size = of_squares ? largest : smallest;
  return -c.pole->stats.min <= kRoundings * std::ldexp(size, -format_limits(dtype).mantissa_bits) ? largest : 0;
}

// The squares of integers that the argument is made of, by casts and sums: where it is negative they have overflowed.
const OpSnapshot* wrapped_squares(const Case& c) {
  const ArgSnapshot* at = c.pole;
  for (int i = 0; i < 8; ++i) {
    const OpSnapshot* maker = maker_of(c, *at);
    if (maker == nullptr || maker->inputs.empty() || maker->outputs.empty()) return nullptr;
    const bool whole = !is_floating(dtype_of(maker->outputs.front(), c.names, DType::kF32));
    if (whole && is_square(c, *maker)) return maker;
    const Bound bound = c.names.op(maker->op).bound;
    if (bound != Bound::kCopy && bound != Bound::kReduceSum) return nullptr;
    at = &maker->inputs.front();
  }
  return nullptr;
}

// A mean or a sum of log-probabilities, those of masked entries among them (ValueGraph::reduces_masked_logs).
std::optional<Diagnosis> of_masked_entries(const Case& c, const std::string& place) {
  const bool sums = c.info->bound == Bound::kReduceSum && !c.info->has(kSoftmax) && c.birth.lifecycle == Lifecycle::kPropagate;
  if (!sums || c.birth.deliberate != Deliberate::kNo || c.inputs_finite() || (c.output->bad & kBadNaN) != 0) return std::nullopt;
  Diagnosis d;
  d.title = fmt::format("{} takes in masked entries, which are -Inf", place);
  d.cause = "a mean or a sum over masked entries";
  d.explanation = fmt::format("The probability of a masked entry is 0 and its logarithm -Inf{}. A sum or mean that includes it is -Inf as well. {}.",
                              masked_by_text(c), made_text(c));
  add_if(d.evidence, masks_text(c, true));
  add_if(d.evidence, c.element_text());
  d.advice = {"leave-masked-out", "finite-mask"};
  return d;
}

std::optional<Diagnosis> diagnose_invalid(const Case& c) {
  if (!c.is_op()) return std::nullopt;
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  if (auto masked = of_masked_entries(c, place)) return masked;
  const bool of_mask = c.birth.lifecycle == Lifecycle::kPropagate && c.info->has(kSoftmax) && c.birth.deliberate == Deliberate::kNo;
  if (c.birth.lifecycle == Lifecycle::kTransform || of_mask) return indeterminate(c, place);
  if (c.birth.deliberate == Deliberate::kYes) {
    Diagnosis d;
    d.title =
        fmt::format("An infinity written on purpose by {} reached {}", place,
                    c.birth.sinks.empty() ? "a sink" : sink_text(c.birth.sinks[0].kind, c.text(c.birth.sinks[0].path)));
    const bool mask = shows_mask(c);
    d.cause = mask ? "a masked entry that was selected" : "an infinity written on purpose";
    d.explanation = mask ? "It was meant as a mask, but nothing absorbed it: a masked entry was selected."
                         : "Nothing absorbed it.";
    d.advice = {finite_advice(c)};
    d.sure = false;
    return d;
  }
  if (c.info->has(kWritesConstant) && (c.output->bad & kBadNaN) != 0 && c.inputs_finite()) {
    Diagnosis d;
    d.title = fmt::format("{} writes NaN", place);
    d.cause = "a constant that is NaN";
    d.explanation = fmt::format("The constant itself is NaN. {}.", made_text(c));
    d.advice = {"guard-value"};
    return d;
  }
  if (auto constant = bad_constant(c, place)) return constant;
  if (c.singular != Singular::kOutside) return std::nullopt;
  Diagnosis d;
  if (c.info->pole == Pole::kPath) {
    d.cause = "a target that is longer than its input";
    d.title = fmt::format("{}: {} of {} targets cannot be read from their inputs", place, c.output->stats.pos_inf,
                          c.output->stats.numel);
    d.explanation = fmt::format(
        "An input that is shorter than its target, with one step more for each label that is repeated, has no path to "
        "it: probability 0, whose loss is infinite. {}.",
        made_text(c));
    add_if(d.evidence, c.element_text());
    d.advice = {"ctc-lengths"};
    return d;
  }
  const bool backward = !forward_op(c.op()).empty();
  const Pole pole = c.info->pole;
  const std::string_view what =
      pole == Pole::kUnit || pole == Pole::kUnitBackward || pole == Pole::kUnitPole ? "a number beyond 1"
      : pole == Pole::kBelowOne || pole == Pole::kBelowOneBackward                  ? "a number below 1"
      : pole == Pole::kZeroOne                                                      ? "a number not between 0 and 1"
                                                                                    : "a negative number";
  d.cause = fmt::format("{} of {}", backward ? forward_op(c.op()) + "'s derivative" : std::string(c.info->name), what);
  d.title = fmt::format("{}: {}", place, d.cause);
  d.explanation = fmt::format("The argument is outside the domain, whatever the format. {}.", made_text(c));
  d.evidence.push_back(fmt::format("{} runs from {} to {}.", arg_text(c, *c.pole), number(c.pole->stats.min),
                                   number(c.pole->stats.max)));
  add_if(d.evidence, c.element_text());
  const bool of_positive = pole == Pole::kNonPositive || pole == Pole::kNegative || pole == Pole::kPower;
  d.advice = {of_positive && !backward && is_of_parameters(c, *c.pole) ? "learn-logarithm" : "clamp-input"};
  if (!of_positive || backward) return d;
  if (const double magnitude = cancelled_magnitude(c); magnitude > 0) {
    d.cause += ": cancellation in a difference";
    d.explanation = fmt::format(
        "It is a difference of numbers as large as {}. {} rounds them by about as much as they differ, so what is left is rounding "
        "error, of either sign. {}.",
        number(magnitude), dtype_name(dtype_of(*c.pole, c.names, DType::kF32)), made_text(c));
    d.advice = {"avoid-cancellation"};  // a clamp hides it
  } else if (const OpSnapshot* squares = wrapped_squares(c)) {
    d.cause += ": integer overflow in squares";
    d.explanation = fmt::format("It is made of squares of integers, by {}{}: a square beyond the largest integer of its format wraps around and may be negative. {}.",
                                c.text(squares->op), squares->call_site == 0 ? "" : fmt::format(" ({})", c.text(squares->call_site)),
                                made_text(c));
    d.advice = {"cast-before-product"};
  }
  return d;
}

}  // namespace

extern const Rule kInvalidRule{FindingClass::kInvalid, diagnose_invalid};

}  // namespace nanhunt::analyze
