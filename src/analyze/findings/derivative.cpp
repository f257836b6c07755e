// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/derivative.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/analyze/wording/text.h"
#include "src/analyze/graph/swallow.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

bool is_derivative_of(const Case& backward, const Case& forward) {
  if (!backward.is_op() || !forward.is_op() || backward.pole == nullptr || forward.pole == nullptr) return false;
  const OpRef &x = backward.birth.at, &y = forward.birth.at;
  if (x.module != y.module || x.step != y.step || backward.pole->value != forward.pole->value) return false;
  const std::string op = forward_op(backward.op());
  if (!op.empty())
    return &op_info(op) == forward.info && forward.info->known() && backward.singular == forward.singular;
  // Many derivatives are made of plain arithmetic: log's divides by what log was given.
  return x.phase == Phase::kBackward && y.phase != Phase::kBackward;
}

const Birth* set_up_by(const Case& backward, const ValueGraph& graph) {
  if (backward.birth.at.phase != Phase::kBackward || backward.singular == Singular::kNone) return nullptr;
  for (const Birth* birth : graph.swallowed()) {
    if (is_derivative_of(backward, make_case(*birth, backward.names, {}))) return birth;
  }
  return nullptr;
}

std::string set_up_text(const Case& backward, const Birth& hidden) {
  const std::string& site = backward.text(hidden.call_site);
  return fmt::format("The {} set it up: {}{} of the same argument, and {} hid it.", phase_name(hidden.at.phase),
                     made_text(make_case(hidden, backward.names, {})), site.empty() ? "" : " at " + site,
                     place_text(hidden.swallow->at, backward.names));
}

namespace {

struct DroppedBy {
  StringId op = 0, call_site = 0;  // call_site: 0 where it is not known
};

// Whether the gradient that came in was 0: 0 / 0, or Inf that the formula of the derivative multiplies by it at once.
bool met_zero_gradient(const Case& c) {
  constexpr std::ptrdiff_t kOfTheFormula = 3;  // the origin, times the exponent, times the gradient
  const ValueStats& made = c.output->stats;
  if (c.info->bound == Bound::kQuotient || made.nan > 0) return made.nan > 0 && made.inf() == 0;
  const auto& nodes = c.birth.chain.nodes;
  const auto end = nodes.begin() + std::min(kOfTheFormula, std::ssize(nodes));
  return std::any_of(nodes.begin(), end, [](const ChainNode& node) { return node.role == "carrier" && node.nan > 0; });
}

std::optional<DroppedBy> dropped_by(const Case& c) {
  const Birth& birth = c.birth;
  if (birth.at.phase == Phase::kBackward) {
    const std::optional<OpSnapshot>& by = c.context->selected_by;
    return by && met_zero_gradient(c) ? std::optional(DroppedBy{by->op, by->call_site}) : std::nullopt;
  }
  const OpRef* dropped = dropped_in_forward(birth);
  // It comes back by the derivative, and by nothing that was computed of it in forward.
  bool by_derivative = false;
  for (const ChainNode& node : birth.chain.nodes) {
    if (node.role != "carrier" || node.phase > Phase::kBackward) continue;
    if (node.phase != Phase::kBackward) return std::nullopt;
    by_derivative = true;
  }
  return dropped != nullptr && by_derivative ? std::optional(DroppedBy{dropped->op, 0}) : std::nullopt;
}

}  // namespace

void add_selection(Diagnosis& d, FindingClass cls, const Case& c) {
  const bool of_numbers = cls == FindingClass::kDivideByZero || cls == FindingClass::kInvalid || cls == FindingClass::kOverflow;
  if (!c.is_op() || !of_numbers) return;
  const std::optional<DroppedBy> dropped = dropped_by(c);
  if (!dropped) return;
  const bool elsewhere = dropped->call_site != 0 && dropped->call_site != c.birth.call_site;
  d.explanation += fmt::format(
      " Forward discards this result ({}{}), but backward still multiplies its gradient of 0 by the derivative there: 0 * Inf, or 0/0.",
      c.text(dropped->op), elsewhere ? " at " + c.text(dropped->call_site) : "");
  // A constant beside the divisor leaves what else has no derivative at 0, such as the root that made it.
  std::erase(d.advice, "guard-denominator");
  const OpInfo& info = c.names.op(dropped->op);
  const bool clamps_or_indexes = (info.has(kReplaces) && info.name != "nan_to_num") || (info.has(kSelects) && !info.has(kMasks));
  d.advice.insert(d.advice.begin(), clamps_or_indexes ? "select-first" : "select-argument");
}

}  // namespace nanhunt::analyze
