// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "src/analyze/rules/rule.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {

std::string made_text(const Case& c) {
  const ValueStats& s = c.output->stats;
  return fmt::format("{} made {}", c.op(), bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel));
}

std::string pole_words(const Case& c) {
  const std::string forward = forward_op(c.op());
  const std::string_view name = c.info->name;
  switch (c.info->pole) {
    case Pole::kLabels:
      return "0/0";
    case Pole::kEmpty:
      return "0/0";
    case Pole::kNonPositive:
      return fmt::format("{} of 0", name);
    case Pole::kPower:
      return "0 to a negative power";
    case Pole::kPowerBackward:
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
    return forward.empty() ? "1/self is a division by 0" : fmt::format("{} has no finite derivative at 0", forward);
  return c.output->stats.inf() == 0 ? "0/0" : c.output->stats.nan == 0 ? "division by 0" : "division by 0 and 0/0";
}

std::string pole_count_text(const Case& c) {
  if (c.pole == nullptr) return "";
  const std::int32_t producer = c.pole->producer;
  const bool known = producer >= 0 && static_cast<std::size_t>(producer) < c.context->slice.size();
  std::string made;
  if (known) {
    const OpSnapshot& op = c.context->slice[static_cast<std::size_t>(producer)];
    const std::string& module = c.text(op.module);
    made = fmt::format(", which {}{} made,", c.text(op.op), module.empty() ? "" : " in " + module);
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

namespace {

// Whether the argument at the pole came from such an op, as far as ops were walked back.
template <typename F>
bool led_from(const Case& c, F&& is_such) {
  return std::any_of(c.context->slice.begin(), c.context->slice.end(),
                     [&](const OpSnapshot& op) { return is_such(op_info(c.text(op.op))); });
}

bool is_norm(const OpInfo& op) { return op.name == "linalg_vector_norm" || op.name == "norm"; }

// Backward divides by differences of what a decomposition gave: the derivative of its vectors.
bool divides_by_gaps(const Case& c) {
  if (!op_info(c.text(c.context->pole_maker)).has(kSubtracts)) return false;
  return op_info(c.text(c.context->pole_of)).has(kGapsInDerivative);
}

}  // namespace

std::vector<std::string> denominator_advice(const Case& c) {
  const std::string_view name = c.info->name;
  if (name == "sqrt_backward" || name == "rsqrt_backward") return {"builtin-norm", "eps-in-sqrt"};
  if (c.birth.at.phase == Phase::kBackward) {
    // PyTorch's derivatives are made of plain ops: of sqrt g / (2 y), of acos and asin g * rsqrt(1 - x * x).
    const bool of_root = led_from(c, [](const OpInfo& op) { return op.pole == Pole::kNegative; });
    const bool of_variance = led_from(c, [](const OpInfo& op) { return op.pole == Pole::kFew; });
    if (c.info->bound == Bound::kQuotient && of_root && of_variance) return {"eps-in-sqrt"};
    if (c.info->bound == Bound::kQuotient && of_root) return {"builtin-norm", "eps-in-sqrt"};
    // A norm of PyTorch's is safe at 0 once; its second derivative divides by it.
    if (c.info->bound == Bound::kQuotient && is_norm(op_info(c.text(c.context->pole_of)))) return {"eps-in-sqrt"};
    if (c.info->pole == Pole::kNonPositive) return {"clamp-inside"};
    if (divides_by_gaps(c)) return {"part-eigenvalues"};
  }
  if (name.starts_with("log")) {
    if (led_from(c, [](const OpInfo& op) { return op.has(kSoftmax); })) return {"log-softmax", "clamp-input"};
    if (led_from(c, [](const OpInfo& op) { return op.name == "sigmoid"; })) return {"with-logits", "clamp-input"};
    return {"clamp-input"};
  }
  if (c.info->pole == Pole::kUnitPole) return {"clamp-inside"};
  if (c.info->pole == Pole::kLabels) return {"skip-unlabelled"};
  if (c.info->pole == Pole::kEmpty) return {"skip-empty"};
  if (c.info->pole == Pole::kFew) return {"few-elements"};
  return {"guard-denominator"};
}

}  // namespace nanhunt::analyze
