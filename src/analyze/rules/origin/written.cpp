// SPDX-License-Identifier: Apache-2.0
// written: a number of the program's own that is not finite, put into a parameter, state, a buffer or the batch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/text.h"
#include "src/analyze/rules/registry.h"

namespace nanhunt::analyze {
namespace {

// A whole tensor of NaN, to be filled later, most often: what read it found some that were not.
std::optional<Diagnosis> diagnose_filled(const Case& c) {
  const bool filled = c.is_op() && c.info->has(kWritesConstant) && c.output->stats.nan > 0 &&
                      std::any_of(c.context->op.scalars.begin(), c.context->op.scalars.end(),
                                  [](const ScalarSnapshot& scalar) { return std::isnan(scalar.value); });
  if (!filled) return std::nullopt;
  const auto& nodes = c.birth.chain.nodes;
  const auto reader =
      std::find_if(nodes.begin(), nodes.end(), [](const ChainNode& node) { return node.role == "carrier"; });
  Diagnosis d;
  d.title = "The program fills a tensor with NaN, and " +
            (reader == nodes.end() ? std::string("it was read")
                                   : reader->op + (reader->module.empty() ? "" : " in " + reader->module) + " read it");
  d.explanation = fmt::format(
      "Nothing has computed it: {} was given NaN. Where such a tensor is meant to be filled later, some of it was not.",
      c.op());
  if (reader != nodes.end()) {
    d.evidence.push_back(fmt::format("Read in phase {} of step {}, where {} made {} NaN of {}.",
                                     phase_name(reader->phase), reader->step, reader->op, reader->nan, reader->numel));
  }
  d.advice = {"guard-value"};
  add_mask(d, c);
  return d;
}

std::optional<Diagnosis> diagnose_written(const Case& c) {
  const Birth& birth = c.birth;
  const bool given = birth.kind == BirthKind::kGiven;
  const bool constant = c.is_op() && c.info->has(kWritesConstant) && birth.into != 0 && c.inputs_finite();
  if (!given && !constant) return diagnose_filled(c);
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
