// SPDX-License-Identifier: Apache-2.0
// unseen_kernel: contents changed while a call whose inside is not watched had them, or came out of a kernel that the
// program launches itself.
#include <fmt/format.h>

#include "src/analyze/rules/changed.h"
#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

Diagnosis diagnose_launched(const Case& c) {
  Diagnosis d;
  d.sure = false;
  const ValueStats& out = c.output->stats;
  d.title = fmt::format("{} came out of {}{}, a kernel that the program launches itself",
                        bad_count_text(out.nan, out.pos_inf, out.neg_inf, out.numel), c.op(),
                        c.where().empty() ? "" : " " + c.where());
  d.explanation = fmt::format(
      "{} Nothing is known of what it computes: it was launched past PyTorch.",
      c.birth.watched ? "What it was given, but for memory that no operation had written, was finite."
                      : "Not all that it was given could be watched.");
  add_if(d.evidence, range_text(c));
  d.cause = "a kernel of the program's own";
  d.advice = {"compare-kernel"};
  return d;
}

std::optional<Diagnosis> diagnose_unseen_kernel(const Case& c) {
  if (c.is_op() && c.info->has(kLaunched)) return diagnose_launched(c);
  if (c.birth.kind != BirthKind::kUnseenWrite || !c.birth.change->opaque) return std::nullopt;
  return diagnose_change(c);
}

}  // namespace

extern const Rule kUnseenKernelRule{FindingClass::kUnseenKernel, diagnose_unseen_kernel};

}  // namespace nanhunt::analyze
