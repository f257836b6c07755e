// SPDX-License-Identifier: Apache-2.0
// bad_input: the batch held NaN or Inf before any op touched it, or what a loss or an evaluation was given beside it.
#include <fmt/format.h>

#include "src/analyze/rules/registry.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// Labels, weights, targets, noise levels: no part was named to them, and no op that was watched made them.
std::optional<Diagnosis> diagnose_given(const Case& c) {
  const ArgSnapshot& source = c.birth.source;
  const ValueStats& s = source.stats;
  const BadSamples samples = bad_samples(c);
  const bool in_rows = samples.coords.size() > 1 || (samples.coords.size() == 1 && s.numel > 1);
  Diagnosis d;
  d.sure = false;
  const bool loss = c.birth.at.phase == Phase::kLoss || c.reaches_training();  // else gradients are off
  d.title = fmt::format("The {} of step {} reads a tensor that was bad before it: {}{}", loss ? "loss" : "evaluation",
                        c.birth.at.step,
                        bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel),
                        in_rows ? fmt::format("{}row {}", s.nonfinite() == 1 ? ", in " : ", first in ", samples.coords[0])
                                : "");
  d.explanation = fmt::format(
      "It was not finite when the {} read it first, and no operation that was watched made it. It is data ({}), or the "
      "program computed it where nothing was watched: with NumPy, before the model was called, with another model, or "
      "in a step before.",
      loss ? "loss" : "evaluation", loss ? "labels, weights, rewards" : "labels, a schedule");
  if (samples.rows_known)
    d.evidence.push_back(fmt::format("The first bad element is {}: sample {} of the data set.",
                                     coords_text(samples.coords), samples.ids[0]));
  // A row is a sample's where the run said so; else it may be a class: of weights that a class without samples made
  // bad.
  d.advice = samples.rows_known && s.nonfinite() < s.numel ? std::vector<std::string>{"drop-bad-samples", "record-ops"}
                                                           : std::vector<std::string>{"record-ops", "drop-bad-samples"};
  add_mask(d, c);
  return d;
}

std::optional<Diagnosis> diagnose_bad_input(const Case& c) {
  if (c.birth.kind == BirthKind::kUnwatched && c.birth.at.op == kBatchOp) return diagnose_given(c);
  if (c.birth.kind != BirthKind::kBatch) return std::nullopt;
  const ArgSnapshot& source = c.birth.source;
  const ValueStats& s = source.stats;
  const BadSamples samples = bad_samples(c);
  const std::string what = fmt::format("{} {}", c.birth.role == TensorRole::kLabel ? "labels" : "batch tensor",
                                       c.text(source.name).empty() ? "(unnamed)" : c.text(source.name));
  const std::string count = bad_count_text(s.nan, s.pos_inf, s.neg_inf, s.numel);
  const bool row_known = !samples.rows_known && samples.coords.size() > 1;
  const std::string row = row_known ? fmt::format("row {}", samples.coords[0]) : "";

  const OpRef& at = c.birth.at;
  const std::uint32_t step = is_of_next_step(at.phase, at.step, c.birth.events) ? at.step + 1 : at.step;
  Diagnosis d;
  d.title =
      fmt::format("The {} of step {} holds {}{}", what, step, count,
                  samples.rows_known && samples.ids.size() == 1 ? fmt::format(": sample {}", samples.ids[0])
                  : row_known ? (s.nonfinite() == 1 ? ", in " : ", first in ") + row
                              : "");
  d.explanation =
      "The numbers were not finite when they came from the data, before any op that was watched had read them: a sample "
      "is bad, or what the program made of samples before the first step (divided by a deviation of 0, say).";
  if (row_known)
    d.evidence.push_back(fmt::format("The first bad element is {}, in {}.", coords_text(samples.coords), row));
  if (samples.rows_known) {
    d.evidence.push_back(fmt::format("The first bad element is {} in row {} of the batch: sample {} of the data set.",
                                     coords_text(samples.coords), samples.row, samples.ids[0]));
    if (samples.may_be_more)
      d.evidence.push_back(
          "Further bad rows were not recorded one by one: other samples of this batch may be bad too.");
  } else if (!samples.ids.empty()) {
    d.evidence.push_back("Which samples are bad was not recorded: those listed are the whole batch.");
  } else {
    d.evidence.push_back("The run did not say which samples the batch holds, nor whether rows are samples.");
  }
  d.advice = {"drop-bad-samples"};
  add_mask(d, c);
  return d;
}

}  // namespace

extern const Rule kBadInputRule{FindingClass::kBadInput, diagnose_bad_input};

}  // namespace nanhunt::analyze
