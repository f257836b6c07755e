// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/comm_underflow.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/analyze/wording/advice.h"
#include "src/analyze/graph/summary.h"
#include "src/analyze/wording/text.h"
#include "src/analyze/graph/slice.h"
#include "src/analyze/graph/zero_walk.h"
#include "src/analyze/rules/run/gradient_underflow.h"

namespace nanhunt::analyze {
namespace {

// The one tensor that an op maps element by element, with numbers alone; nullptr: it does something else.
const Value* mapped(const OpInView& op, const Value& out) {
  const Value* only = nullptr;
  for (const Value* in : op.in) {
    if (in == nullptr || !in->has_stats || !in->stats.counted() || only != nullptr) return nullptr;
    only = in;
  }
  return only != nullptr && only->stats.numel == out.stats.numel && only->bad == 0 ? only : nullptr;
}

}  // namespace

void CommUnderflow::on_op(const OpInView& op) {
  if (op.record->phase != Phase::kComm) return;
  if (names_.is_exchange(op.record->phase, op.record->op)) {
    came_from_ = op.record->seq;
    return;
  }
  if (op.info->flush == FlushRule::kNotMeasured || op.out.size() != 1) return;
  const Value* out = op.out[0];
  if (out == nullptr || !out->has_stats || !out->stats.counted() || out->bad != 0 || out->stats.numel < 2) return;
  const Value* in = mapped(op, *out);
  if (in == nullptr) return;
  const bool after = in->producer != kNoSeq && in->producer == came_from_;
  if (after) came_from_ = op.record->seq;
  const LayoutRecord *layout = names_.layout(out->layout), *from = names_.layout(in->layout);
  if (layout == nullptr || !is_floating(layout->dtype) || dtype_size(layout->dtype) > 2) return;
  // One format to itself loses nothing.
  if (op.info->flush == FlushRule::kCopy && from != nullptr && from->dtype == layout->dtype) return;
  double factor = 1;
  for (const ScalarArg& scalar : op.scalars) factor = names_.is(scalar.name, "other") ? scalar.value : factor;
  if (factor == 0) return;  // a rank without samples gives nothing
  const std::int64_t nonzero = in->stats.numel - in->stats.zero;
  const std::int64_t lost = std::max<std::int64_t>(0, out->stats.zero - in->stats.zero);
  Side& side = sides_[after ? 1 : 0];
  side.lost += static_cast<double>(lost);
  side.considered += static_cast<double>(nonzero);
  if (lost <= side.most) return;
  side.most = lost;
  side.at = {op.record->seq, op.record->step, op.record->micro_batch, op.record->phase, op.record->module, op.record->op};
  side.output = snapshot(out, op.outputs[0]);
  side.inputs.clear();
  for (std::size_t i = 0; i < op.in.size(); ++i) side.inputs.push_back(snapshot(op.in[i], op.inputs[i]));
  side.factor = factor;
}

void CommUnderflow::on_step_end(std::uint32_t step) {
  for (Side& side : sides_) {
    if (side.considered > 0) {
      ++side.steps;
      const double share = side.lost / side.considered;
      const bool over = share >= kLostGradients;
      side.run = over ? side.run + 1 : 0;
      side.longest_run = std::max(side.longest_run, side.run);
      if (share >= kAllLost) ++side.dead;
      if (over) {
        if (side.over++ == 0) {
          side.first_over = step;
          side.first = side.at;
          side.first_output = side.output;
          side.first_inputs = side.inputs;
          side.first_most = side.most;
          side.first_factor = side.factor;
        }
        side.last_over = step;
        side.sum_lost += share;
      }
    }
    side.lost = side.considered = 0;
    side.most = 0;
  }
}

std::optional<Finding> CommUnderflow::finding() const {
  const auto worst = std::max_element(sides_.begin(), sides_.end(),
                                      [](const Side& a, const Side& b) { return a.sum_lost < b.sum_lost; });
  const Side& side = *worst;
  const bool lasts = side.longest_run >= kLostSteps || side.over * 2 > side.steps;
  if (side.over < kLostSteps || !lasts) return std::nullopt;
  const bool before = worst == sides_.begin();
  const bool dead = side.dead >= kLostSteps && side.dead * 2 > side.steps;
  const DType stored = dtype_of(side.first_output, names_, DType::kF16);
  const std::string format(dtype_name(stored));
  const double least = format_limits(stored).min_subnormal;
  const std::string share = percent(side.sum_lost / side.over);
  Finding f;
  f.cls = FindingClass::kUnderflow;
  f.severity = dead ? Severity::kFault : Severity::kWarning;
  f.confidence = Confidence::kObserved;
  f.place = place_of(side.first, names_);
  f.first_step = side.first_over;
  f.last_step = side.last_over;
  f.occurrence_count = side.over;
  f.tensor = f.output = summarise(side.first_output, "output", 0, names_);
  for (std::size_t i = 0; i < side.first_inputs.size(); ++i)
    f.inputs.push_back(summarise(side.first_inputs[i], "input", static_cast<int>(i), names_));
  f.title = fmt::format("{} of the gradients vanish in {} {} their sum over the ranks", dead ? "All" : share, format,
                        before ? "before" : "after");
  f.explanation = fmt::format(
      "{} stores gradients in {}, whose smallest number is {}; what is half of that or less becomes 0. In {} it lost at "
      "least {} of those that were not 0 ({} on average). No NaN is needed for this to do harm: what is 0 is not learnt "
      "from.",
      names_.text(side.first.op), format, number(least), count_of(side.over, "step"), percent(kLostGradients), share);
  f.evidence.push_back(fmt::format("In step {} it lost {} of {} at once.", side.first_over, side.first_most,
                                   side.first_output.stats.numel));
  if (side.first_factor != 1 && side.first_factor != 0) {
    f.evidence.push_back(fmt::format("It multiplies by {}: magnitudes up to {} become 0.", number(side.first_factor),
                                     number(least / 2 / side.first_factor)));
  }
  f.advice = {make_advice("reduce-fp32"), make_advice("raise-loss-scale")};
  return f;
}

}  // namespace nanhunt::analyze
