// SPDX-License-Identifier: Apache-2.0
// written: a number of the program's own that is not finite, put into a parameter, state, a buffer or the batch.
#include <fmt/format.h>

#include "src/analyze/wording/text.h"
#include "src/analyze/rules/registry.h"

namespace nanhunt::analyze {
namespace {

std::optional<Diagnosis> diagnose_written(const Case& c) {
  const Birth& birth = c.birth;
  const bool given = birth.kind == BirthKind::kGiven;
  const bool constant = c.is_op() && c.info->has(kWritesConstant) && birth.into != 0 && c.inputs_finite();
  if (!given && !constant) return std::nullopt;
  const ValueStats& s = given ? birth.source.stats : c.output->stats;
  const bool nan = s.nan > 0;
  const std::optional<TensorRole> into = birth.into_role;
  // An infinity in anything else is a mask.
  if (!nan && !given && into != TensorRole::kParameter && into != TensorRole::kState) return std::nullopt;
  const std::string what = nan ? "NaN" : s.pos_inf > 0 ? "Inf" : "-Inf";
  Diagnosis d;
  d.title = into ? fmt::format("The program writes {} into {}", what, sink_text(*into, c.text(birth.into_name)))
                 : fmt::format("The program writes {} by {}", what, c.op());
  d.explanation =
      fmt::format("Nothing has computed it: it is a number of the program's own, which {} put there.", c.op());
  d.advice = {"guard-value"};
  add_mask(d, c);
  return d;
}

}  // namespace

extern const Rule kWrittenRule{FindingClass::kInvalid, diagnose_written};

}  // namespace nanhunt::analyze
