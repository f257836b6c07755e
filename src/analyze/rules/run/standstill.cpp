// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/standstill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/graph/zero_walk.h"
#include "src/analyze/rules/run/update_loss.h"
#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"
#include "src/core/op_name.h"

namespace nanhunt::analyze {
namespace {

bool rounds_early(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

bool is_one_number(const Value* value) {
  return value != nullptr && value->has_stats && value->stats.numel == 1 && value->stats.nonfinite() == 0 &&
         value->stats.counted();
}

// What was there before the step: what an optimizer makes for one update, as its denominator, counts nothing.
bool lasts(const Value* before, const Value* out, const OpRecord& op) {
  const auto is_told = [](const Value* value) {
    return value != nullptr && (value->has_role(TensorRole::kBuffer) || value->has_role(TensorRole::kState));
  };
  const bool older = before != nullptr && before->producer != kNoSeq && before->made_step < op.step;
  return is_told(before) || is_told(out) || (op.phase == Phase::kOptimizer && older);
}

StringId place_of_change(const OpInView& op) {
  const Value* out = op.out[0];
  return out != nullptr && out->name != 0 ? out->name : op.record->module;
}

}  // namespace

void Standstill::on_op(const OpInView& op) {
  if (op.out.empty() || op.in.empty() || op.out[0] == nullptr || op.inputs[0].role != ArgRole::kOverwritten) return;
  const Value *before = op.in[0], *out = op.out[0];
  const OpRecord& record = *op.record;
  if (record.phase == Phase::kOptimizer && record.module != 0) trained_.insert(record.module);
  const std::string_view name = plain_op_name(names_.op(record.op).name);
  if (!name.starts_with("add") && !name.starts_with("sub")) return;
  if (!rounds_early(dtype_of(snapshot(out, op.outputs[0]), names_, record.compute_dtype))) return;

  if (lasts(before, out, record) && is_one_number(before) && is_one_number(out) && op.in.size() == 1 && !op.scalars.empty()) {
    const auto added = std::find_if(op.scalars.begin(), op.scalars.end(), [&](const ScalarArg& s) { return names_.is(s.name, "other"); });
    if (added != op.scalars.end() && std::isfinite(added->value) && added->value != 0)
      return note(Kind::kCounter, op, before->stats.min == out->stats.min, 1, 1, added->value);
  }
  const auto counts = lost_counts(op, names_);
  if (!counts || counts->updates < 1) return;
  const auto [updates, lost, share] = *counts;
  if (out->has_role(TensorRole::kBuffer))
    return note(Kind::kBuffer, op, lost / updates >= kStandsStill && share >= kStandsStill, updates, lost, 0);
  const bool merges = out->has_role(TensorRole::kParameter) && record.phase != Phase::kOptimizer;
  if (merges && updates >= kFewestMerged)
    note(Kind::kMerge, op, lost / updates >= kMergeLost && share >= kMergeLost, updates, lost, 0);
}

void Standstill::note(Kind kind, const OpInView& op, bool is_still, double updates, double lost, double added) {
  const StringId place = place_of_change(op);
  auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& one) { return one.kind == kind && one.at.module == place; });
  if (row == rows_.end()) {
    if (!is_still || rows_.size() >= kMaxRows) return;
    row = rows_.insert(rows_.end(), Row{});
    row->kind = kind;
  }
  if (is_still && row->steps == 0 && !row->is_still_now) {
    const OpRecord& record = *op.record;
    row->at = {record.seq, record.step, record.micro_batch, record.phase, place, record.op};
    row->call_site = record.call_site;
    row->output = snapshot(op.out[0], op.outputs[0]);
    for (std::size_t i = 0; i < op.in.size(); ++i) row->inputs.push_back(snapshot(op.in[i], op.inputs[i]));
    row->updates = updates;
    row->lost = lost;
    row->added = added;
  }
  if (is_still) row->last_step = op.record->step;
  row->is_still_now = row->is_still_now || is_still;
  row->moves_now = row->moves_now || !is_still;
}

void Standstill::on_step_end() {
  for (Row& row : rows_) {
    if (row.moves_now) {
      row.run = 0;
    } else if (row.is_still_now) {
      ++row.steps;
      row.longest_run = std::max(row.longest_run, ++row.run);
    }
    row.is_still_now = row.moves_now = false;
  }
}

std::vector<Finding> Standstill::findings() const {
  std::vector<Finding> out;
  for (const Kind kind : {Kind::kCounter, Kind::kBuffer, Kind::kMerge}) {
    const Row* first = nullptr;
    std::vector<std::string> others;
    for (const Row& row : rows_) {
      if (row.kind != kind) continue;
      if (kind == Kind::kBuffer && row.longest_run < kStandsStillSteps) continue;
      if (kind == Kind::kMerge && trained_.contains(row.at.module)) continue;
      if (first == nullptr) {
        first = &row;
      } else if (others.size() < 1024) {
        others.push_back(names_.text(row.at.module));
      }
    }
    if (first == nullptr) continue;
    out.push_back(finding_of(*first));
    out.back().also = std::move(others);
  }
  return out;
}

Finding Standstill::finding_of(const Row& row) const {
  const DType dtype = dtype_of(row.output, names_, DType::kBF16);
  const std::string op = names_.text(row.at.op), name = names_.text(row.at.module), format(dtype_name(dtype));
  const int digits = format_limits(dtype).mantissa_bits + 1;
  Finding f;
  f.cls = FindingClass::kUpdateLoss;
  f.severity = Severity::kWarning;
  f.confidence = Confidence::kObserved;
  f.place = place_of(row.at, names_);
  f.call_site = names_.text(row.call_site);
  f.first_step = row.at.step;
  f.last_step = row.last_step;
  f.occurrence_count = std::max(row.steps, 1u);
  f.tensor = f.output = summarise(row.output, "output", 0, names_);
  for (std::size_t i = 0; i < row.inputs.size(); ++i)
    f.inputs.push_back(summarise(row.inputs[i], "input", static_cast<int>(i), names_));
  const std::string of = name.empty() ? "" : " of " + name;
  switch (row.kind) {
    case Kind::kCounter: {
      const std::string at = number(row.output.stats.min), by = number(std::fabs(row.added));
      const std::string_view sign = row.added < 0 ? "-" : "+";
      f.title = fmt::format("The counter{} stands still at {}: in {} {} {} {} is {}", of, at, format, at, sign, by, at);
      f.explanation = fmt::format(
          "{} keeps {} digits in base 2, and {} is less than what separates {} from the next number: it is rounded away, "
          "in this step and in every one after it. What is computed from the counter, as a bias correction or a schedule, "
          "stays where it is.",
          format, digits, by, at);
      f.advice.push_back(make_advice("fp32-counter"));
      break;
    }
    case Kind::kBuffer:
      f.title = fmt::format("{} of the updates{} change nothing: they are too small for {}", percent(row.lost / row.updates),
                            of, format);
      f.explanation = fmt::format(
          "{} adds to each number of a buffer and stores the sum in {}, which keeps {} digits in base 2: what is less than "
          "half of the step to the next number is rounded away. In step {} {} of the {} numbers that should have moved "
          "stayed as they were. No NaN is needed for this to do harm.",
          op, format, digits, row.at.step, number(row.lost), number(row.updates));
      f.advice.push_back(make_advice("fp32-buffer"));
      break;
    case Kind::kMerge:
      f.title = fmt::format("{} of what is added to {} is rounded away in {}", percent(row.lost / row.updates),
                            name.empty() ? "the weights" : name, format);
      f.explanation = fmt::format(
          "{} adds to weights that no optimizer of this run trains, as when an adapter is merged into them, and stores the "
          "sum in {}, which keeps {} digits in base 2. {} of the {} weights that should have changed stayed as they were: "
          "the model that is kept is not the one that was trained.",
          op, format, digits, number(row.lost), number(row.updates));
      f.advice.push_back(make_advice("fp32-merge"));
      break;
  }
  return f;
}

}  // namespace nanhunt::analyze
