// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/own_scaler.h"

#include <algorithm>
#include <cmath>

namespace nanhunt::analyze {
namespace {

bool is_number(const Value* value) {
  return value != nullptr && value->has_stats && value->stats.numel == 1 && value->bad == 0 && value->stats.counted();
}
// Made by no op of this step's forward, loss or backward: the program keeps it.
bool is_kept(const Value& value) {
  return value.made_in != Phase::kForward && value.made_in != Phase::kLoss && value.made_in != Phase::kBackward;
}

// What the op multiplies `of` by, where that is one number. nullopt: it is no such op.
std::optional<double> factor_of(const OpInView& op, const Names& names) {
  const std::string_view name = op.info->name;
  if (name == "_amp_foreach_non_finite_check_and_unscale") {
    for (std::size_t i = 1; i < op.in.size(); ++i)
      if (names.is(op.inputs[i].slot, "inv_scale") && is_number(op.in[i])) return op.in[i]->stats.min;
    return std::nullopt;
  }
  const bool divides = name == "div";
  if ((name != "mul" && !divides) || op.in.empty()) return std::nullopt;
  std::optional<double> number;
  for (const ScalarArg& scalar : op.scalars)
    if (names.is(scalar.name, "other")) number = scalar.value;
  for (std::size_t i = 0; i < op.in.size() && !number && op.in.size() == 2; ++i) {
    if (divides && i == 0) continue;
    const Value* other = op.in[1 - i];
    if (is_number(op.in[i]) && is_kept(*op.in[i]) && other != nullptr && !(is_number(other) && is_kept(*other)))
      number = op.in[i]->stats.min;
  }
  if (!number || !std::isfinite(*number) || *number == 0) return std::nullopt;
  return divides ? 1 / *number : *number;
}

}  // namespace

void OwnScaler::enter(std::uint32_t step) {
  if (step == step_) return;
  factors_.clear();
  used_ = unscaled_ = false;
  clipped_by_.reset();
  step_ = step;
}

void OwnScaler::on_op(const OpInView& op) {
  if (scaler_.told()) return;  // one that tells of itself is at work
  const Phase phase = op.record->phase;
  const bool loss = phase == Phase::kLoss;
  if (!loss && phase != Phase::kUnscale && phase != Phase::kClip && phase != Phase::kComm) return;
  const std::optional<double> number = factor_of(op, names_);
  if (!number || op.out.empty() || op.out[0] == nullptr) return;
  enter(op.record->step);
  if (loss && op.out[0]->stats.numel == 1) on_loss(op, *number);
  if (!loss) on_gradient(op, 1 / *number);
  if (phase == Phase::kClip) on_clip(op, *number);
}

void OwnScaler::on_clip(const OpInView& op, double number) {
  const Value* by = op.in.size() == 2 ? op.in[1] : nullptr;
  const bool in_place = op.in[0] != nullptr && op.out[0]->storage == op.in[0]->storage && op.out[0]->stats.numel > 1;
  if (unscaled_ || !in_place || by == nullptr || !is_number(by) || by->made_in != Phase::kClip) return;
  if (by->made_step == op.record->step) clipped_by_ = number;
}

void OwnScaler::on_loss(const OpInView& op, double number) {
  const Factor factor{number, {op.record->op, op.record->call_site, op.record->module}, op.record->seq, op.record->micro_batch};
  if (factors_.size() < kMaxFactors) factors_.push_back(factor);
  if (site_ && factor.site == *site_) use(factor);
}

void OwnScaler::on_gradient(const OpInView& op, double number) {
  if (unscaled_ || number == 1) return;
  const auto same = std::find_if(factors_.begin(), factors_.end(), [&](const Factor& factor) {
    return std::fabs(factor.number - number) <= kSameScale * std::fabs(number);
  });
  if (same == factors_.end()) return;
  use(*same);
  Factor at = *same;
  at.seq = op.record->seq;
  if (clipped_by_) scaler_.on_own_clip(*clipped_by_, op.record->step);
  tell(ScalerAction::kUnscale, at, scale_);
  unscaled_ = true;
}

// The scale of this step, or of one of its micro-batches.
void OwnScaler::use(const Factor& factor) {
  if (!site_) {
    site_ = factor.site;
    scale_ = factor.number;
    tell(ScalerAction::kCreate, factor, scale_);
  }
  if (factor.number != scale_) {
    scaler_.set_dynamic();
    scale_ = factor.number;
    tell(ScalerAction::kUpdate, factor, scale_);
  }
  if (!used_) tell(ScalerAction::kScale, factor, scale_);
  used_ = true;
}

void OwnScaler::tell(ScalerAction action, const Factor& at, double scale) {
  ScalerRecord record;
  record.action = action;
  record.step = step_;
  record.micro_batch = at.micro_batch;
  record.seq = at.seq;
  record.scale = scale;
  record.dynamic = false;  // until it changes
  scaler_.on_own(record);
}

void OwnScaler::on_step_end(const StepRecord& step, ValueGraph& graph) {
  if (scaler_.told()) return;
  enter(step.step);
  if (!site_ && step.skipped && !factors_.empty() && std::fabs(factors_.back().number) >= kLeastScale)
    use(factors_.back());
  if (used_) tell(ScalerAction::kUpdate, {scale_, *site_, step.end_seq, 0}, scale_);
  for (const Factor& factor : factors_) {
    if (site_ && factor.site == *site_) graph.on_scaling(factor.seq);
  }
  factors_.clear();
  used_ = unscaled_ = false;
  clipped_by_.reset();
}

}  // namespace nanhunt::analyze
