// SPDX-License-Identifier: Apache-2.0
// written: a number of the program's own that is not finite, put into a parameter, state, a buffer or the batch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/graph/slice.h"
#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

bool writes_nan(const Case& c) {
  return c.is_op() && c.info->has(kWritesConstant) && c.output->stats.nan > 0 &&
         std::any_of(c.context->op.scalars.begin(), c.context->op.scalars.end(),
                     [](const ScalarSnapshot& scalar) { return std::isnan(scalar.value); });
}

// A NaN that PyTorch writes itself, where an answer is wanted that there is none of.
std::optional<Diagnosis> diagnose_no_answer(const Case& c) {
  const std::string place = c.where().empty() ? "" : " " + c.where();
  for (const OpSnapshot& op : c.context->slice) {
    if (op.call_site != c.context->op.call_site) continue;  // the program's own
    const auto empty = std::find_if(op.inputs.begin(), op.inputs.end(),
                                    [](const ArgSnapshot& arg) { return arg.known && arg.stats.numel == 0; });
    const auto sign = std::find_if(op.outputs.begin(), op.outputs.end(),
                                   [&](const ArgSnapshot& out) { return c.text(out.slot) == kLogOfDeterminant; });
    Diagnosis d;
    if (sign != op.outputs.end()) {
      d.title = fmt::format("logdet{}: the determinant is negative", place);
      d.part_of = "logdet";
      d.cause = "log of a negative determinant";
      d.explanation = "logdet has no answer where the determinant is below 0: PyTorch gives NaN.";
      d.evidence.push_back(fmt::format("{} gave the sign -1.", c.text(op.op)));
      d.advice = {"slogdet"};
    } else if (empty != op.inputs.end()) {
      d.title = fmt::format("{}{} averages over no element: 0/0", c.op(), place);
      d.cause = "0/0: a mean over nothing";
      d.explanation = fmt::format("Nothing was left to average: {} was given no element.", c.text(op.op));
      d.advice = {"skip-empty"};
    } else {
      continue;
    }
    return d;
  }
  return std::nullopt;
}

// A whole tensor of NaN, to be filled later, most often: what read it found some that were not.
std::optional<Diagnosis> diagnose_filled(const Case& c) {
  if (!writes_nan(c)) return std::nullopt;
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
  const bool whole = c.output->stats.numel > 1 && c.output->stats.nan == c.output->stats.numel;
  d.advice = {whole ? "write-before-read" : "guard-value"};
  add_mask(d, c);
  return d;
}

std::optional<Diagnosis> diagnose_written(const Case& c) {
  const Birth& birth = c.birth;
  const bool given = birth.kind == BirthKind::kGiven;
  if (writes_nan(c)) {
    if (auto none = diagnose_no_answer(c)) return none;
  }
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
