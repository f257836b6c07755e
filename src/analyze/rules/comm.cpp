// SPDX-License-Identifier: Apache-2.0
// comm: what came back from other ranks was bad although what this rank gave was finite.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose(const Case& c) {
  if (!c.is_op() || c.birth.at.phase != Phase::kComm || !c.inputs_finite()) return std::nullopt;
  Diagnosis d;
  d.title = fmt::format("{}{}{} brought in non-finite numbers from other ranks", c.op(), c.where().empty() ? "" : " ",
                        c.where());
  d.explanation = fmt::format(
      "{}, and everything this rank put in was finite: another rank's share was bad, the sum over the ranks passed "
      "what the format holds, or the transfer itself failed.",
      made_text(c));
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  d.sure = false;  // the other ranks' shares are not in this trace
  d.advice = {"look-at-other-ranks"};
  return d;
}

}  // namespace

extern const Rule kCommRule{FindingClass::kComm, diagnose};

}  // namespace nanhunt::analyze
