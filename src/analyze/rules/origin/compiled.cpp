// SPDX-License-Identifier: Apache-2.0
// A compiled graph, which is one op here: bad numbers came out of it, and what made them inside cannot be told.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_compiled(const Case& c) {
  if (!c.is_op() || !c.info->has(kCompiled)) return std::nullopt;
  Diagnosis d;
  d.sure = false;
  const ValueStats& out = c.output->stats;
  const std::string count = bad_count_text(out.nan, out.pos_inf, out.neg_inf, out.numel);
  d.title = fmt::format("Inside compiled code: {} came out of a compiled graph{}", count, c.where().empty() ? "" : " " + c.where());
  d.explanation = fmt::format(
      "{} The compiler has fused the operations of the graph, so that none of them is heard: which one it was cannot be told "
      "from outside.",
      c.birth.watched ? "All that the graph was given was finite." : "Not all that the graph was given could be watched.");
  d.cause = "something inside of compiled code";
  d.advice = {"compile-off"};
  return d;
}

}  // namespace

extern const Rule kCompiledRule{FindingClass::kUnexplained, diagnose_compiled};

}  // namespace nanhunt::analyze
