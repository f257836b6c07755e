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

bool is_same_scale(double a, double b) { return std::fabs(a - b) <= kSameScale * std::fabs(b); }

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
  divided_.reset();
  last_.reset();
  used_ = unscaled_ = false;
  clipped_ = {};
  step_ = step;
}

void OwnScaler::on_op(const OpInView& op) {
  const Phase phase = op.record->phase;
  if (scaler_.told()) {  // one that tells of itself is at work
    const bool of_gradients = phase >= Phase::kBackward && phase <= Phase::kOptimizer;
    scaler_.on_op(op, of_gradients ? factor_of(op, names_) : std::nullopt);
    return;
  }
  const bool loss = phase == Phase::kLoss;
  if (!loss) use_last();
  if (!loss && phase != Phase::kUnscale && phase != Phase::kClip && phase != Phase::kComm) return;
  if (phase == Phase::kClip) note_norm(op);
  const std::optional<double> number = factor_of(op, names_);
  if (!number || op.out.empty() || op.out[0] == nullptr) return;
  enter(op.record->step);
  if (loss && op.out[0]->stats.numel == 1) on_loss(op, *number);
  if (!loss) on_gradient(op, 1 / *number);
  if (phase == Phase::kClip) on_clip(op, *number);
}

void OwnScaler::note_norm(const OpInView& op) {
  enter(op.record->step);
  for (const Value* out : op.out) {
    if (is_number(out) && out->stats.min > 0 && clipped_.norms.size() < kMaxNorms) clipped_.norms.push_back(out->stats.min);
  }
}

// Is the number a limit divided by a norm of this step's gradients, or of the last few of them? Limits are written by
// people: they have two digits. Averages over ranks or micro-batches are one part of a whole number.
bool OwnScaler::is_limit_of_norm(double number) const {
  const auto near = [](double a, double b) { return std::fabs(a - b) <= kSameLimit * std::fabs(b); };
  const double parts = 1 / number;
  if (!(number > 0) || number >= 1 || std::fabs(parts - std::round(parts)) <= kWhole * parts) return false;
  const auto is_limit = [&](double limit) {
    const double unit = std::pow(10, std::floor(std::log10(limit)) - 1);
    return near(limit, std::round(limit / unit) * unit);
  };
  double sum = 0, squares = 0;
  for (auto norm = clipped_.norms.rbegin(); norm != clipped_.norms.rend(); ++norm) {
    sum += *norm;  // of squares, as likely as not
    squares += *norm * *norm;
    if (is_limit(number * std::sqrt(sum)) || is_limit(number * std::sqrt(squares))) return true;
  }
  return false;
}

void OwnScaler::on_clip(const OpInView& op, double number) {
  if (unscaled_ || op.in[0] == nullptr || op.out[0]->stats.numel == 1) return;
  const Value* by = op.in.size() == 2 ? op.in[1] : nullptr;
  if (by != nullptr) {
    if (!is_number(by) || by->made_in != Phase::kClip || by->made_step != op.record->step) return;
  } else if (number != clipped_.number) {
    if (!is_limit_of_norm(number)) return;
    clipped_.number = number;
  }
  if (op.out[0]->storage == op.in[0]->storage) {
    clipped_.by = number;
  } else if (clipped_.copies.size() < kMaxNorms) {
    clipped_.copies.emplace(op.out[0]->storage, number);
  }
}

void OwnScaler::on_loss(const OpInView& op, double number) {
  const Factor factor{number, {op.record->op, op.record->call_site, op.record->module}, op.record->seq, op.record->micro_batch};
  if (factors_.size() < kMaxFactors) factors_.push_back(factor);
  if (site_ && factor.site == *site_) last_ = factor;
}

void OwnScaler::use_last() {
  if (last_) use(*last_);
  last_.reset();
}

void OwnScaler::on_gradient(const OpInView& op, double number) {
  const bool averages = std::any_of(ranks_.begin(), ranks_.end(), [&](std::size_t count) {
    return std::fabs(number - static_cast<double>(count)) <= kWhole * number;
  });
  if (unscaled_ || number == 1 || averages) return;
  // A number that clipping made may come near the scale by chance: the norm is near the limit then.
  const Value* by = op.in.size() == 2 ? op.in[1] : nullptr;
  const bool of_norm =
      by != nullptr && is_number(by) && by->made_in == Phase::kClip && by->made_step == op.record->step;
  const auto same = std::find_if(factors_.begin(), factors_.end(), [&](const Factor& factor) {
    return is_same_scale(factor.number, number) &&
           (!of_norm || std::fabs(factor.number - number) <= kSameLimit * std::fabs(factor.number));
  });
  if (same == factors_.end()) {
    if (number >= kLeastScale) divided_ = number;
    return;
  }
  use(*same);
  Factor at = *same;
  at.seq = op.record->seq;
  const auto copy = op.in[0] == nullptr ? clipped_.copies.end() : clipped_.copies.find(op.in[0]->storage);
  if (!clipped_.by && copy != clipped_.copies.end()) clipped_.by = copy->second;
  if (clipped_.by) scaler_.on_own_clip(*clipped_.by, op.record->step);
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
  use_last();
  if (!site_ && step.skipped && !factors_.empty() && std::fabs(factors_.back().number) >= kLeastScale)
    use(factors_.back());
  const bool told = std::isfinite(step.scale) && step.scale > 0;
  // Backward began with it: no op has multiplied the loss.
  if (!site_ && told && divided_ && is_same_scale(step.scale, *divided_)) use({step.scale, {}, step.end_seq, 0});
  if (used_ && told) {
    is_told_ = is_same_scale(step.scale, scale_);
  } else if (site_ && told && is_told_) {  // its ops are not in the trace
    use({step.scale, *site_, step.end_seq, 0});
  }
  if (used_) tell(ScalerAction::kUpdate, {scale_, *site_, step.end_seq, 0}, scale_);
  for (const Factor& factor : factors_) {
    if (site_ && factor.site == *site_ && factor.number == scale_) graph.on_scaling(factor.seq);
  }
  factors_.clear();
  divided_.reset();
  used_ = unscaled_ = false;
  clipped_ = {};
}

}  // namespace nanhunt::analyze
