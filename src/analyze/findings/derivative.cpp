// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/derivative.h"

#include <fmt/format.h>

#include "src/analyze/wording/text.h"
#include "src/analyze/graph/swallow.h"
#include "src/analyze/graph/value_graph.h"
#include "src/analyze/rules/rule.h"

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

}  // namespace nanhunt::analyze
