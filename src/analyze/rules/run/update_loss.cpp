// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/update_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/zero_walk.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// As src/record/measure/lost_updates.h names them; always the last three, in this order.
constexpr std::string_view kUpdates = "nanhunt.updates";
constexpr std::string_view kLost = "nanhunt.lost_updates";
constexpr std::string_view kShare = "nanhunt.lost_update_share";

bool in_range(double count, const Value& value) {
  return count >= 0 && count <= static_cast<double>(value.stats.numel);  // NaN is not
}

// What is done between two steps belongs to no module.
StringId module_of(const OpInView& op) { return op.record->module != 0 ? op.record->module : op.out[0]->name; }

}  // namespace

std::optional<LostCounts> lost_counts(const OpInView& op, const Names& names) {
  if (op.scalars.size() < 3 || op.out.empty() || op.out[0] == nullptr || !op.out[0]->has_stats) return std::nullopt;
  const auto counts = op.scalars.last(3);
  if (!names.is(counts[0].name, kUpdates) || !names.is(counts[1].name, kLost) || !names.is(counts[2].name, kShare))
    return std::nullopt;
  const LostCounts found{counts[0].value, counts[1].value, counts[2].value};
  const Value& value = *op.out[0];
  if (!in_range(found.updates, value) || !in_range(found.lost, value) || found.lost > found.updates) return std::nullopt;
  return found;
}

void UpdateLoss::take(Row& row, const OpInView& op, double updates, double lost) const {
  const OpRecord& record = *op.record;
  row.at = {record.seq, record.step, record.micro_batch, record.phase, module_of(op), record.op};
  row.call_site = record.call_site;
  row.output = snapshot(op.out[0], op.outputs[0]);
  row.inputs.clear();
  for (std::size_t i = 0; i < op.in.size(); ++i) row.inputs.push_back(snapshot(op.in[i], op.inputs[i]));
  row.updates = updates;
  row.lost = lost;
}

void UpdateLoss::on_op(const OpInView& op) {
  const bool between = op.record->phase == Phase::kUpdate;
  if ((op.record->phase != Phase::kOptimizer && !between) || op.out.empty()) return;
  const std::string_view name = names_.op(op.record->op).name;
  if (between && name == "copy") return take_copied(op);
  const auto counts = lost_counts(op, names_);
  if (!counts) return;
  const Value* out = op.out[0];
  if (out == nullptr || !out->has_stats) return;
  const bool copy = between && out->has_role(TensorRole::kState);
  const bool parameter = copy || out->has_role(TensorRole::kParameter);
  const bool sum = between && out->roles == 0 && name != "mul";
  // A momentum buffer that adds and a first moment follow the gradient; only a decay that does nothing is a loss.
  const bool average = !parameter && out->has_role(TensorRole::kState) && name == "mul";
  // What is multiplied by (weight decay) is no update of a parameter that was learnt.
  if ((parameter && name == "mul") || (!parameter && !average && !sum)) return;
  const auto [updates, lost, share] = *counts;
  if (updates < kFewestUpdates) return;
  Row row;
  row.average = average;
  row.copy = copy || sum;
  take(row, op, updates, lost);
  row.dtype = dtype_of(row.output, names_, op.record->compute_dtype);
  const bool over = lost / updates >= kLostUpdates && share >= kLostUpdates;
  if (!sum) return count(module_of(op), row, over);
  if (sums_.size() < kMaxSums) sums_.insert_or_assign(out->id, Sum{std::move(row), over});
}

// An average that was written as a whole: what was lost was lost in the sum that is copied.
void UpdateLoss::take_copied(const OpInView& op) {
  const Value* out = op.out[0];
  if (sums_.empty() || out == nullptr || !out->has_role(TensorRole::kState)) return;
  for (const Value* in : op.in) {
    if (in == nullptr || !sums_.contains(in->id)) continue;
    take_sum(in->id, module_of(op));
    return;
  }
}

// An average is known for one once it was written.
void UpdateLoss::on_mark(const MarkRecord& mark) {
  if (mark.kind == TensorRole::kState) take_sum(mark.value, mark.path);
}

void UpdateLoss::take_sum(ValueId sum, StringId average) {
  const auto known = sums_.find(sum);
  if (known == sums_.end()) return;
  Row row = std::move(known->second.row);
  row.at.module = average;
  count(average, row, known->second.over);
  sums_.erase(known);
}

// `taken`: of one op.
void UpdateLoss::count(StringId module, const Row& taken, bool over) {
  auto it = index_.find({module, taken.average});
  if (it == index_.end()) {
    if (rows_.size() >= kMaxRows) return;
    it = index_.emplace(std::pair(module, taken.average), rows_.size()).first;
    rows_.push_back(taken);
  }
  Row& row = rows_[it->second];
  if (over && row.over == 0 && !row.over_now) {
    row.at = taken.at;
    row.call_site = taken.call_site;
    row.output = taken.output;
    row.inputs = taken.inputs;
    row.updates = taken.updates;
    row.lost = taken.lost;
  }
  const double share = taken.lost / taken.updates;
  row.share_now = row.measured_now ? std::min(row.share_now, share) : share;  // several ops: what one of them moved
  row.over_now = over && (!row.measured_now || row.over_now);
  row.measured_now = true;
}

void UpdateLoss::on_step_end(std::uint32_t step, double loss) {
  sums_.clear();
  if (!first_loss_ && std::isfinite(loss)) first_loss_ = loss;
  std::size_t measured = 0, dead = 0;
  bool any_over = false;
  for (Row& row : rows_) {
    if (!row.measured_now) continue;
    ++row.steps;
    row.sum += row.share_now;
    row.worst = std::max(row.worst, row.share_now);
    if (row.over_now) {
      if (row.over++ == 0) row.first_over = step;
      row.last_over = step;
      row.longest_run = std::max(row.longest_run, ++row.run);
      any_over = any_over || !row.average;
    } else {
      row.run = 0;
    }
    if (!row.average && !row.copy) {
      ++measured;
      dead += row.over_now && row.share_now >= kAllUpdatesLost ? 1 : 0;
    }
    row.measured_now = row.over_now = false;
  }
  if (measured == 0) return;  // a skipped step, or nothing of 16 bits
  if (any_over) last_over_ = step;
  if (dead * 2 <= measured) {
    run_ = 0;
    return;
  }
  if (run_++ == 0) {
    run_loss_ = loss;
    if (longest_run_ < kLostUpdateSteps) first_dead_ = step;
  }
  ++steps_dead_;
  longest_run_ = std::max(longest_run_, run_);
  if (longest_run_ >= kLostUpdateSteps && !loss_at_stop_) loss_at_stop_ = run_loss_;
}

// Before much was learnt. Of a loss that starts at 0 or below, as likelihoods may, no share can be taken.
bool UpdateLoss::stood_still_early() const {
  return first_loss_ && loss_at_stop_ && *first_loss_ > 0 && *loss_at_stop_ > kConverged * *first_loss_;
}

std::optional<Finding> UpdateLoss::finding() const {
  std::vector<const Row*> over;
  bool averages = false;
  for (const Row& row : rows_) {
    if (row.longest_run < kLostUpdateSteps) continue;
    if (!row.average) over.push_back(&row);
    averages = averages || row.average;
  }
  const bool info = over.empty();
  if (info && !averages) return std::nullopt;
  if (info) {
    for (const Row& row : rows_) {
      if (row.average && row.longest_run >= kLostUpdateSteps) over.push_back(&row);
    }
  }
  const bool stopped = longest_run_ >= kLostUpdateSteps && steps_dead_ > 0;
  const bool fault = !info && stopped && stood_still_early();
  const Row* first = *std::min_element(over.begin(), over.end(), [&](const Row* a, const Row* b) {
    const auto key = [&](const Row* row) { return std::tuple(fault && row->copy, row->first_over, row->at.seq); };
    return key(a) < key(b);
  });
  const std::string module = names_.text(first->at.module), op = names_.text(first->at.op);
  const std::string format(dtype_name(first->dtype));
  Finding f;
  f.cls = FindingClass::kUpdateLoss;
  f.severity = info ? Severity::kInfo : fault ? Severity::kFault : Severity::kWarning;
  f.benign = info;
  f.confidence = Confidence::kObserved;
  f.place = place_of(first->at, names_);
  f.call_site = names_.text(first->call_site);
  f.first_step = first->first_over;
  f.last_step = last_over_;
  for (const Row* row : over) f.last_step = std::max(f.last_step, row->last_over);
  f.occurrence_count = first->over;
  f.tensor = f.output = summarise(first->output, "output", 0, names_);
  for (std::size_t i = 0; i < first->inputs.size(); ++i)
    f.inputs.push_back(summarise(first->inputs[i], "input", static_cast<int>(i), names_));
  const std::string share = percent(first->lost / first->updates);
  if (info) {
    f.title = fmt::format("{} of {} does not decay in {}: the average keeps old gradients for good", op, module,
                          format);
    f.explanation = fmt::format(
        "Each step should shrink the average by less than half of what separates two {} numbers, so it stays as it is "
        "and only ever grows. Steps become shorter than they should be in a long run.",
        format);
  } else {
    f.title =
        fault ? fmt::format("Training stands still: {} adds updates to {} weights that are too small to change them",
                            op, format)
              : fmt::format("{} of the updates of {} change nothing: they are too small for {} {}", share, module,
                            first->copy ? "an average in" : format, first->copy ? format : "weights");
    f.explanation = fmt::format(
        "{} adds to each {} and stores the sum in {}, which keeps {} digits in base 2: what is less than half of "
        "the step to the next number is rounded away. In step {} {} of the {} {} of {} that should have moved "
        "stayed as they were. No NaN is needed for this to do harm.",
        op, first->copy ? "number of the average" : "weight", format, format_limits(first->dtype).mantissa_bits + 1,
        first->at.step, number(first->lost), number(first->updates), first->copy ? "numbers" : "weights", module);
  }
  std::vector<std::string> shares;
  for (const Row* row : over) {
    shares.push_back(fmt::format("{} ({}, from step {})", names_.text(row->at.module),
                                 percent(row->sum / static_cast<double>(row->steps)), row->first_over));
    if (row != first && f.also.size() < 1024) f.also.push_back(names_.text(row->at.module));
  }
  f.evidence.push_back(fmt::format("Share lost on average over the run, at least: {}.", join(shares, 12)));
  const auto is_weight = [](const Row& row) { return !row.average && !row.copy; };
  const auto is_copy = [](const Row& row) { return row.copy; };
  const auto tell_share = [&](const auto& is_one, std::string_view what) {
    const auto all = std::count_if(rows_.begin(), rows_.end(), is_one);
    const auto losing = std::count_if(over.begin(), over.end(), [&](const Row* row) { return is_one(*row); });
    if (losing == 0) return false;
    const std::string which = all == 1        ? fmt::format("The one {} kept in 16 bits", what)
                              : losing == all ? fmt::format("All {} {}s kept in 16 bits", all, what)
                                              : fmt::format("{} of the {} {}s kept in 16 bits", losing, all, what);
    f.evidence.push_back(fmt::format("{} {} half of {} updates or more.", which, losing == 1 ? "loses" : "lose",
                                     losing == 1 ? "its" : "their"));
    return true;
  };
  const bool weights = !info && tell_share(is_weight, "parameter");
  const bool copies = !info && tell_share(is_copy, "average");
  if (fault) {
    f.evidence.push_back(fmt::format("From step {} on, most parameters stood still for {} in a row.", first_dead_,
                                     count_of(longest_run_, "step")));
  } else if (stopped && !info) {
    const double now = loss_at_stop_.value_or(0), first_loss = first_loss_.value_or(0);
    f.evidence.push_back(
        first_loss > 0
            ? fmt::format("By step {} the loss was down to {} of {}: what is left to learn may be little.", first_dead_,
                          number(now), number(first_loss))
            : fmt::format("By step {} the loss was {}, at first {}: how much is left to learn is not known.",
                          first_dead_, number(now), number(first_loss)));
  }
  if (averages && !info) f.evidence.emplace_back("The second moments do not decay either.");
  if (copies && first->copy) f.advice.push_back(make_advice("fp32-average"));
  if (!copies || weights) f.advice.push_back(make_advice("fp32-masters"));
  if (copies && !first->copy) f.advice.push_back(make_advice("fp32-average"));
  if (weights) f.advice.push_back(make_advice("stochastic-rounding"));
  return f;
}

std::vector<UpdateLossRow> UpdateLoss::rows() const {
  std::vector<UpdateLossRow> out;
  for (const Row& row : rows_) {
    out.push_back({names_.text(row.at.module), names_.text(row.at.op), row.dtype, row.average, row.steps, row.over,
                   row.first_over, row.steps == 0 ? 0 : row.sum / static_cast<double>(row.steps), row.worst});
  }
  return out;
}

}  // namespace nanhunt::analyze
