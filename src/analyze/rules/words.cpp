// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "src/analyze/rules/rule.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {

std::string made_text(const Case& c) {
  const ValueStats& s = c.output->stats;
  return fmt::format("{} made {}", c.op(), bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel));
}

const OpSnapshot* maker_of(const Case& c, const ArgSnapshot& arg) {
  const bool known = arg.producer >= 0 && static_cast<std::size_t>(arg.producer) < c.context->slice.size();
  return known ? &c.context->slice[static_cast<std::size_t>(arg.producer)] : nullptr;
}

bool is_square(const Case& c, const OpSnapshot& op) {
  const OpInfo& info = c.names.op(op.op);
  if (info.pole == Pole::kPower)
    return std::any_of(op.scalars.begin(), op.scalars.end(), [](const ScalarSnapshot& s) { return s.value == 2; });
  return info.has(kBilinear) && op.inputs.size() == 2 && op.inputs[0].value == op.inputs[1].value;
}

bool adds_masks(const Case& c) {
  const double lowest = -0.99 * format_limits(c.stored).max_finite;
  const std::vector<ArgSnapshot>& inputs = c.context->op.inputs;
  return c.info->bound == Bound::kSum && inputs.size() > 1 && c.output->stats.neg_inf > 0 &&
         std::all_of(inputs.begin(), inputs.end(), [&](const ArgSnapshot& arg) {
           return arg.known && arg.stats.counted() && arg.stats.min < lowest;
         });
}

namespace {

std::string infinite_derivative(std::string_view of, std::string_view at = "0") {
  return fmt::format("the derivative of {} is infinite at {}", of, at);
}

// Of x ** p, whose exponent is known less `lowered`: PyTorch's derivative is made of x ** (p - 1).
std::string derivative_of_power(const Case& c, double lowered) {
  std::optional<double> exponent;
  if (const ScalarSnapshot* given = c.scalar("exponent")) exponent = given->value;
  for (const EvidenceRecord* element : c.elements) {
    for (const Operand& operand : element->operands) {
      if (!exponent && c.text(operand.slot) == "exponent") exponent = operand.number;
    }
  }
  if (!exponent || *exponent + lowered == 0) return infinite_derivative("a power");
  return infinite_derivative("x ** " + number(*exponent + lowered));
}

std::string_view pole_of_derivative(const OpInfo& forward) {
  switch (op_info(std::string(forward.name) + "_backward").pole) {
    case Pole::kUnitBackward:
      return "1 or -1";
    case Pole::kBelowOneBackward:
      return "1";
    case Pole::kMinusOne:
      return "-1";
    case Pole::kZeroOne:
      return "0 or 1";
    default:
      return "0";
  }
}

}  // namespace

std::string pole_words(const Case& c) {
  const std::string forward = forward_op(c.op());
  const std::string_view name = c.info->name;
  const OpInfo* derived = c.context->derivative_of ? &c.names.op(c.context->derivative_of->op) : nullptr;
  if (derived != nullptr && derived->pole != Pole::kPower) return infinite_derivative(derived->name, pole_of_derivative(*derived));
  switch (c.info->pole) {
    case Pole::kLabels:
      return "0/0";
    case Pole::kEmpty:
      return "0/0";
    case Pole::kNonPositive:
      return fmt::format("{} of 0", name);
    case Pole::kGamma:
      return fmt::format("{} of {}", name,
                         c.pole != nullptr && c.pole->stats.min < 0 ? "0 or a negative whole number" : "0");
    case Pole::kNorm:
      return "a vector over its norm, 0/0";
    case Pole::kPower:
      return c.birth.at.phase == Phase::kBackward ? derivative_of_power(c, 1) : "0 to a negative power";
    case Pole::kPowerBackward:
      return derivative_of_power(c, 0);
    case Pole::kUnitBackward:
    case Pole::kBelowOneBackward:
      return fmt::format("{} has no finite derivative there", forward);
    case Pole::kUnitPole:
      return fmt::format("{} of 1 or -1", name);
    case Pole::kZeroOne:
      return fmt::format("{} of 0 or 1", name);
    case Pole::kMinusOne:
      return "log of 0";
    default:
      break;
  }
  const bool of_one_input = c.info->pole_slots[0] == "self" || c.info->pole_slots[0] == "result";
  if (c.info->pole == Pole::kZero && of_one_input)
    return forward.empty() ? "a division by 0" : fmt::format("{} has no finite derivative at 0", forward);
  return c.output->stats.inf() == 0 ? "0/0" : c.output->stats.nan == 0 ? "division by 0" : "division by 0 and 0/0";
}

std::string derivative_text(const Case& c) {
  if (!c.context->derivative_of) return "";
  return fmt::format("the derivative of {}", c.names.op(c.context->derivative_of->op).name);
}

std::string pole_count_text(const Case& c) {
  if (c.pole == nullptr) return "";
  std::string made;
  if (const OpSnapshot* op = maker_of(c, *c.pole)) {
    const std::string& module = c.text(op->module);
    made = fmt::format(", which {}{} made,", c.text(op->op), module.empty() ? "" : " in " + module);
  }
  return fmt::format("{}{} holds {} of {}", arg_text(c, *c.pole), made, count_of(c.pole->stats.zero, "zero"),
                     c.pole->stats.numel);
}

std::string arg_text(const Case& c, const ArgSnapshot& arg) {
  const std::string& slot = c.text(arg.slot);
  const std::string name = c.name_of(arg);
  if (name.empty()) return slot.empty() ? "an input" : slot;
  return slot.empty() ? name : slot + " (" + name + ")";
}

std::string range_text(const Case& c) {
  std::vector<std::string> parts;
  for (const ArgSnapshot& arg : c.context->op.inputs) {
    if (arg.role == ArgRole::kMask || arg.role == ArgRole::kIndex) continue;
    if (!arg.known || arg.bad != 0 || !arg.stats.counted()) continue;
    parts.push_back(fmt::format("{} {}", arg_text(c, arg), number(arg.stats.amax)));
  }
  return parts.empty()
             ? ""
             : (parts.size() == 1 ? "Finite inputs; largest magnitude: " : "Finite inputs; largest magnitudes: ") +
                   join(parts, 6) + ".";
}

void add_if(std::vector<std::string>& lines, std::string line) {
  if (!line.empty()) lines.push_back(std::move(line));
}

void add_mask(Diagnosis& d, const Case& c) {
  if (c.birth.masked == nullptr) return;
  const MaskedBy& by = *c.birth.masked;
  const std::string place = place_text(by.at, c.names);
  const std::string& site = c.text(by.call_site);
  d.title += fmt::format("; {} multiplies it by 0, and it stays NaN", place);
  d.cause = "NaN times a mask of 0 is NaN";
  d.explanation =
      fmt::format("{}{} multiplies by a mask, {} of {} of it 0: NaN * 0 is NaN, so that the mask takes none away. {}",
                  place, site.empty() ? "" : " at " + site, by.mask.stats.zero, by.mask.stats.numel, d.explanation);
  d.advice.insert(d.advice.begin(), "select-before");
}

namespace {

// Backward has the line of the op whose derivative it takes; one that the program wrote by hand has lines of its own.
bool is_derivative_at(const Case& c, StringId call_site) { return call_site == 0 || call_site == c.birth.call_site; }

// The op that made `arg`, past views, copies and constants that are added, not what is taken from one.
const OpSnapshot* source_of(const Case& c, const ArgSnapshot& arg) {
  const OpSnapshot* at = maker_of(c, arg);
  for (std::size_t i = 0; at != nullptr && i < kMaxSlice; ++i) {
    const OpInfo& info = c.names.op(at->op);
    const bool hands_on = info.zero == ZeroRule::kSame && info.has(kKeepsMask) && info.pole == Pole::kNone;
    const bool adds = info.zero == ZeroRule::kAdd && at->inputs.size() == 1 && !info.has(kSubtracts);
    if (!hands_on && !adds) return at;
    at = at->inputs.empty() ? nullptr : maker_of(c, at->inputs.front());
  }
  return nullptr;
}

// Does this root take a sum of squares, so that it is a norm?
bool is_norm_by_hand(const Case& c, const OpSnapshot& root) {
  const OpSnapshot* sum = root.inputs.empty() ? nullptr : source_of(c, root.inputs.front());
  if (sum == nullptr || sum->inputs.empty()) return false;
  if (c.names.op(sum->op).bound == Bound::kMatmul || c.names.op(sum->op).has(kInnerProducts)) return is_square(c, *sum);
  if (c.names.op(sum->op).zero != ZeroRule::kReduce) return false;
  const OpSnapshot* squares = source_of(c, sum->inputs.front());
  return squares != nullptr && is_square(c, *squares);
}

// Did such an op make the argument at the pole, past views, copies, numbers that are added, and selections of elements
// that write none of their own? `past_differences`: past numbers that it is taken from as well.
template <typename F>
bool is_made_by(const Case& c, F&& is_such, bool past_differences = false) {
  const OpSnapshot* at = c.pole == nullptr ? nullptr : source_of(c, *c.pole);
  for (std::size_t i = 0; at != nullptr && i < kMaxSlice; ++i) {
    const OpInfo& info = c.names.op(at->op);
    if (is_such(info)) return true;
    const bool differs = past_differences && info.bound == Bound::kSum && at->inputs.size() == 1;
    if (at->inputs.empty() || (!differs && !(info.has(kSelects) && !info.has(kWritesConstant)))) return false;
    at = source_of(c, at->inputs.front());
  }
  return false;
}

// Of `arg`, where it is a sum of exponentials, each times what is not negative or over it: the op that made them, where
// it gave zeros for finite exponents.
const OpSnapshot* exponentials_of(const Case& c, const ArgSnapshot& arg, std::size_t depth) {
  const OpSnapshot* const op = depth == 0 ? nullptr : source_of(c, arg);
  if (op == nullptr || op->inputs.empty() || op->outputs.empty()) return nullptr;
  const OpInfo& info = c.names.op(op->op);
  if (info.bound == Bound::kExp)
    return op->inputs.front().stats.neg_inf == 0 && op->outputs.front().stats.zero > 0 ? op : nullptr;
  const bool sums = info.zero == ZeroRule::kAdd || info.zero == ZeroRule::kReduce || info.bound == Bound::kProduct ||
                    info.bound == Bound::kQuotient || info.bound == Bound::kMatmul;
  const bool selects = info.has(kSelects) && !info.has(kWritesConstant);
  if (info.has(kSubtracts) || (!sums && !selects)) return nullptr;
  for (std::size_t i = 0; i < op->inputs.size(); ++i) {
    const bool others = std::all_of(op->inputs.begin(), op->inputs.end(), [&](const ArgSnapshot& in) {
      return &in == &op->inputs[i] || !in.known || !in.stats.counted() || in.stats.min >= 0;
    });
    if (!others || (i > 0 && info.bound == Bound::kQuotient)) continue;
    if (const OpSnapshot* found = exponentials_of(c, op->inputs[i], depth - 1)) return found;
  }
  return nullptr;
}

// Its zeros are the weights of entries that a mask took out.
bool is_masked_softmax(const Case& c) {
  return std::any_of(c.context->slice.begin(), c.context->slice.end(), [&](const OpSnapshot& op) {
    return c.names.op(op.op).has(kSoftmax) && !op.inputs.empty() && op.inputs.front().stats.neg_inf > 0;
  });
}

// Where a logarithm, or the derivative of one, is taken of 0.
std::vector<std::string> logarithm_advice(const Case& c) {
  if (is_masked_softmax(c)) return {"clamp-input"};  // whose log_softmax is -Inf too
  if (is_made_by(c, [](const OpInfo& op) { return op.name.ends_with("_det"); })) return {"slogdet"};
  if (is_made_by(c, [](const OpInfo& op) { return op.has(kSoftmax); })) return {"log-softmax", "clamp-input"};
  if (is_made_by(c, [](const OpInfo& op) { return op.name == "sigmoid"; }, true)) return {"with-logits", "clamp-input"};
  if (lost_exponentials(c) != nullptr) return {"stay-in-logarithms", "clamp-input"};
  return {"clamp-input"};
}

// The format of whole numbers, where the argument is of one, or a copy, a sum or a whole multiple of such.
std::optional<DType> format_of_count(const Case& c, const ArgSnapshot& arg) {
  const DType stored = dtype_of(arg, c.names, DType::kF32);
  if (!is_floating(stored)) return stored;
  const OpSnapshot* op = maker_of(c, arg);
  if (op == nullptr || op->inputs.empty()) return std::nullopt;
  const OpInfo& info = c.names.op(op->op);
  const bool hands_on = info.has(kKeepsMask) && info.pole == Pole::kNone &&
                        (info.bound == Bound::kCopy || info.bound == Bound::kProduct || info.bound == Bound::kReduceSum);
  const bool whole = std::all_of(op->scalars.begin(), op->scalars.end(),
                                 [](const ScalarSnapshot& s) { return s.value == std::round(s.value); });
  if (!hands_on || !whole) return std::nullopt;
  std::optional<DType> format;
  for (const ArgSnapshot& in : op->inputs)
    if (!(format = format_of_count(c, in))) return std::nullopt;
  return format;
}

bool is_norm(const OpInfo& op) { return op.name == "linalg_vector_norm" || op.name == "norm"; }

// The root that made `arg`, which may have been multiplied by a number since.
const OpSnapshot* root_before(const Case& c, const ArgSnapshot& arg) {
  const OpSnapshot* op = maker_of(c, arg);
  const auto by_number = [&](const OpSnapshot& one) {
    return c.names.op(one.op).bound == Bound::kProduct &&
           (one.inputs.size() == 1 || (one.inputs.size() == 2 && one.inputs[1].known && one.inputs[1].stats.numel == 1));
  };
  if (op != nullptr && by_number(*op)) op = maker_of(c, op->inputs.front());
  return op != nullptr && c.names.op(op->op).pole == Pole::kNegative ? op : nullptr;
}

// The divisor is 1 less what rounded to 1 in 16 bits, as 0.999 does.
bool is_rounded_to_1(const Case& c) {
  const DType format = dtype_of(*c.pole, c.names, DType::kF32);
  const OpSnapshot* op = maker_of(c, *c.pole);
  if ((format != DType::kBF16 && format != DType::kF16) || op == nullptr || op->inputs.empty()) return false;
  const OpInfo& info = c.names.op(op->op);
  const bool differs = info.bound == Bound::kSum && (info.has(kSubtracts) || info.zero != ZeroRule::kAdd);
  return differs && std::all_of(op->inputs.begin(), op->inputs.end(), [](const ArgSnapshot& in) {
           return in.known && in.stats.counted() && in.stats.min == 1 && in.stats.max == 1;
         });
}

// Forward mode makes the derivative of a root where the root is taken: a tangent over 2 * sqrt(x), at its line.
bool is_tangent(const Case& c, const OpSnapshot* root) {
  const OpSnapshot* maker = maker_of(c, *c.pole);
  return root != nullptr && maker != root && root->call_site == c.birth.call_site && maker->call_site == c.birth.call_site;
}

// Backward divides by differences of what a decomposition gave: the derivative of its vectors.
bool divides_by_gaps(const Case& c) {
  if (!op_info(c.text(c.context->pole_maker)).has(kSubtracts)) return false;
  return op_info(c.text(c.context->pole_of)).has(kGapsInDerivative);
}

}  // namespace

const OpSnapshot* lost_exponentials(const Case& c) {
  return c.pole == nullptr ? nullptr : exponentials_of(c, *c.pole, kMaxSlice);
}

// Is the divisor a number of the program's own, which has no elements that could be 0 now and then?
bool divides_by_number_0(const Case& c) {
  if (c.info->bound != Bound::kQuotient) return false;
  if (const ScalarSnapshot* divisor = c.scalar("other")) return divisor->value == 0;
  // As a tensor: what no op of the step made, of one number.
  return c.birth.at.phase != Phase::kBackward && c.pole != nullptr && c.pole->known && c.pole->stats.numel == 1 &&
         c.pole->stats.zero == 1 && c.pole->name == 0 && !c.pole->is_made;
}

std::vector<std::string> denominator_advice(const Case& c) {
  const std::string_view name = c.info->name;
  if (divides_by_number_0(c)) {
    const bool all_0 = c.scalar("other") == nullptr && c.output->stats.inf() == 0;
    return {all_0 ? "clamp-divisor" : "look-at-divisor"};
  }
  const std::optional<OpSnapshot>& derived = c.context->derivative_of;
  if (derived && c.names.op(derived->op).pole == Pole::kNonPositive) return logarithm_advice(c);
  if (derived && c.names.op(derived->op).pole == Pole::kMinusOne) return {"clamp-above-minus-1"};
  // Of sqrt's gradient, and of the derivative that PyTorch makes of plain ops: g / (2 y).
  const std::vector<OpSnapshot>& slice = c.context->slice;
  const auto root = std::find_if(slice.begin(), slice.end(),
                                 [&](const OpSnapshot& op) { return c.names.op(op.op).pole == Pole::kNegative; });
  const bool by_name = name == "sqrt_backward" || name == "rsqrt_backward";
  if (by_name && root == slice.end()) return {"builtin-norm", "eps-in-sqrt"};
  const bool of_root = root != slice.end() && c.info->bound == Bound::kQuotient &&
                       c.birth.at.phase == Phase::kBackward && is_derivative_at(c, root->call_site);
  if (by_name || of_root) {
    return is_norm_by_hand(c, *root) ? std::vector<std::string>{"builtin-norm", "eps-in-sqrt"}
                                     : std::vector<std::string>{"eps-in-sqrt"};
  }
  if (c.birth.at.phase == Phase::kBackward) {
    // A norm of PyTorch's is safe at 0 once; its second derivative divides by it.
    const bool of_norm = is_norm(op_info(c.text(c.context->pole_of))) && is_derivative_at(c, c.context->pole_site);
    if (c.info->bound == Bound::kQuotient && of_norm) return {"eps-in-sqrt"};
    // Of acos and asin g * rsqrt(1 - x * x), of acosh g * rsqrt(x * x - 1); of entr a logarithm.
    if (c.info->pole == Pole::kNonPositive) {
      const OpSnapshot* maker = c.pole == nullptr ? nullptr : maker_of(c, *c.pole);
      const bool of_more = maker != nullptr && c.names.op(maker->op).has(kSubtracts);  // acosh: x * x - 1
      return {name.starts_with("log") ? "clamp-above-0" : of_more ? "clamp-above-1" : "clamp-inside"};
    }
    if (divides_by_gaps(c)) return {"part-eigenvalues"};
  }
  // x * log(y) takes its logarithm of the second.
  const bool of_second = c.info->pole == Pole::kNonPositive && c.info->pole_slots[0] != "self";
  if (name.starts_with("log") || of_second) return logarithm_advice(c);
  if (c.info->pole == Pole::kUnitPole) return {"clamp-inside"};
  if (c.info->pole == Pole::kPower || c.info->pole == Pole::kPowerBackward) return {"guard-base"};
  if (c.info->pole == Pole::kGamma) return {"keep-above-zero"};
  if (c.info->pole == Pole::kNorm) return {"no-zero-vector"};
  if (c.info->pole == Pole::kLabels) return {"skip-unlabelled"};
  if (c.info->pole == Pole::kEmpty) return {"skip-empty"};
  if (c.info->pole == Pole::kFew) return {"few-elements"};
  if (c.info->pole == Pole::kMatrix) return {"regular-matrix"};
  if (const auto format = c.pole == nullptr ? std::nullopt : format_of_count(c, *c.pole)) {
    if (format == DType::kU8) return {"clamp-count", "count-in-int64"};
    return {"clamp-count"};
  }
  if (c.birth.at.phase != Phase::kBackward && c.pole != nullptr) {
    if (is_rounded_to_1(c)) return {"difference-in-fp32"};
    const OpSnapshot* of_divisor = root_before(c, *c.pole);
    // x / 0 of an x that is not 0: no constant makes a sound number of it.
    const bool infinite = c.info->bound == Bound::kQuotient && c.output->stats.inf() > 0;
    if (infinite && !is_tangent(c, of_divisor)) return {"skip-zero-divisors"};
    if (of_divisor != nullptr) return {"eps-in-sqrt"};
  }
  return {"guard-denominator"};
}

}  // namespace nanhunt::analyze
