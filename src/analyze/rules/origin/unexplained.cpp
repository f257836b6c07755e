// SPDX-License-Identifier: Apache-2.0
// unexplained: the place is known, the reason is not. Always matches, so it stands last.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_unexplained(const Case& c) {
  Diagnosis d;
  d.sure = false;
  if (!c.is_op()) {
    const ValueStats& s = c.birth.source.stats;
    d.title = fmt::format("Bad numbers came from something that was not watched: {}",
                          bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel));
    d.explanation = "A value was not finite when it was first seen, and the record of what made it is missing.";
    return d;
  }
  const std::string place = c.where().empty() ? c.op() : c.op() + " " + c.where();
  if (c.birth.watched) {
    d.title = fmt::format("{} made non-finite numbers of finite inputs", place);
    d.explanation = fmt::format("{}, and nothing that is known of the op and its inputs explains it.", made_text(c));
  } else {
    d.title = fmt::format("Non-finite numbers are first seen leaving {}", place);
    d.explanation =
        fmt::format("{}. Not every input of the op was watched, so they may have come from before.", made_text(c));
  }
  add_if(d.evidence, c.element_text());
  add_if(d.evidence, range_text(c));
  return d;
}

}  // namespace

extern const Rule kUnexplainedRule{FindingClass::kUnexplained, diagnose_unexplained};

}  // namespace nanhunt::analyze
