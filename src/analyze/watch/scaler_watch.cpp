// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/scaler_watch.h"

#include <algorithm>
#include <cmath>

namespace nanhunt::analyze {
namespace {

// Of gradients' own size, as Adam's updates are.
bool divides_by_size(const OpInView& op) {
  const UpdateRule rule = op.info->update;
  return rule == UpdateRule::kQuotient || rule == UpdateRule::kAdam || rule == UpdateRule::kAdamW;
}

}  // namespace

void ScalerWatch::note(const ScalerRecord& record, const char* what) {
  ++events_;
  ScalerSection::Event event{record.step, record.seq, what, record.scale, ""};
  if (record.action != ScalerAction::kCreate) event.text = names_.text(record.text);
  if (first_events_.size() < kKeptEvents) {
    first_events_.push_back(std::move(event));
    return;
  }
  last_events_.push_back(std::move(event));
  if (last_events_.size() > kKeptEvents) last_events_.pop_front();
}

void ScalerWatch::misuse(Misuse kind, const ScalerRecord& record, bool did_harm) {
  const std::string text = kind == Misuse::kRefused ? names_.text(record.text) : "";
  auto it = std::find_if(misuses_.begin(), misuses_.end(),
                         [&](const MisuseState& known) { return known.kind == kind && known.text == text; });
  if (it == misuses_.end()) {
    if (misuses_.size() >= kMaxMisuses) return;
    MisuseState state;
    state.kind = kind;
    state.seq = record.seq;
    state.micro_batch = record.micro_batch;
    state.first_step = record.step;
    state.scale = scale_;
    state.total_norm = record.total_norm;
    state.max_norm = record.max_norm;
    state.text = text;
    it = misuses_.insert(misuses_.end(), std::move(state));
  } else if (did_harm && !it->did_harm) {
    it->total_norm = record.total_norm;  // show the numbers of a call that changed something
    it->max_norm = record.max_norm;
  }
  it->steps += it->count == 0 || record.step != it->last_step ? 1 : 0;
  ++it->count;
  it->last_step = record.step;
  it->did_harm = it->did_harm || did_harm;
  it->went_on = false;
}

void ScalerWatch::collapse(Collapse kind, bool fault, std::uint32_t step) {
  if (collapse_ && (collapse_->fault || !fault)) return;
  CollapseState state;
  state.kind = kind;
  state.fault = fault;
  state.step = step;
  state.streak_from = streak_ > 0 ? streak_from_ : step;
  state.skips = streak_;
  state.scale = scale_;
  state.from_scale = streak_ > 0 ? streak_scale_ : scale_;
  collapse_ = state;
}

// Nothing worse can be said of it, and what it says of the decline is said of all of it.
void ScalerWatch::give_up(const ScalerRecord& record) {
  collapse_.reset();
  collapse(Collapse::kGaveUp, /*fault=*/true, record.step);
  collapse_->streak_from = decline_.from;
  collapse_->skips = decline_.skips;
  collapse_->absorbed = decline_.absorbed;
  collapse_->from_scale = decline_.scale;
}

// The scale after an update, and what it says about the coming ones.
void ScalerWatch::follow_scale(const ScalerRecord& record) {
  const double before = scale_;
  scale_ = record.scale;
  if (!section_.dynamic) return;
  absorbed_ = record.found_inf && scale_ == before && record.hysteresis < hysteresis_;
  hysteresis_ = record.hysteresis;
  if (record.found_inf) {
    if (decline_.skips++ == 0) decline_ = {record.step, 1, 0, before};
    decline_.absorbed += absorbed_ ? 1 : 0;
  }
  if (scale_ < before) {
    ++section_.backoffs;
    note(record, "backoff");
  } else if (scale_ > before) {
    ++section_.growths;
    note(record, "growth");
    decline_ = {};
  } else if (absorbed_) {
    note(record, "hysteresis");
  }
  const std::int64_t interval = record.growth_interval != 0 ? record.growth_interval : section_.growth_interval;
  const bool grows = section_.growth_factor > 1;
  if (grows && interval > 0 && record.growth_tracker > interval) {
    const bool known = collapse_.has_value();
    collapse(Collapse::kNeverGrows, /*fault=*/false, record.step);
    if (!known) {
      collapse_->tracker = record.growth_tracker;
      collapse_->interval = interval;
    }
  }
  if (scale_ == 0 || (scale_ > 0 && scale_ < kSmallestScale)) collapse(Collapse::kZero, true, record.step);
  if (std::isinf(scale_) || std::isnan(scale_)) collapse(Collapse::kInfinite, true, record.step);
}

void ScalerWatch::follow(const ScalerRecord& record) {
  for (MisuseState& state : misuses_) state.went_on = state.went_on || record.action != ScalerAction::kRefused;
  if (record.step != step_ || !in_step_) {
    if (record.step > step_ + std::uint64_t{1}) optimizers_.clear();  // an update between may be missing
    step_ = record.step;
    in_step_ = true;
    scaled_ = skip_ = made_ = found_ = unscaled_ = absorbed_ = false;
    step_scale_ = scale_;
    early_clip_.reset();
  }
  if (record.action == ScalerAction::kClip) {
    if (!told_ && !scaled_) early_clip_ = record;
    // With gradients still multiplied by the scale, the norm is too large by that factor. A norm that is not finite
    // belongs to a step that is skipped.
    if (scaled_ && !unscaled_ && step_scale_ != 1 && !std::isinf(record.max_norm)) {  // no limit: it only measures
      misuse(Misuse::kClipBeforeUnscale, record,
             std::isfinite(record.total_norm) && record.total_norm > record.max_norm);
    }
    return;
  }
  if (!seen_) {
    seen_ = true;
    section_.init_scale = scale_ = step_scale_ = record.scale;
  }
  Optimizer none;
  Optimizer& optimizer = optimizers_.size() < kMaxOptimizers || optimizers_.contains(record.optimizer)
                             ? optimizers_[record.optimizer]
                             : none;
  unscales_ = unscales_ || (record.action != ScalerAction::kCreate && record.action != ScalerAction::kScale);
  switch (record.action) {
    case ScalerAction::kCreate:
      made_ = true;
      if (created_) {  // a second scaler: the first one is shown, and both number their optimizers from 0
        several_ = true;
        break;
      }
      created_ = true;
      section_.family = own_ ? "the program's own" : names_.text(record.text);
      section_.dynamic = record.dynamic;
      section_.init_scale = scale_ = step_scale_ = record.scale;
      section_.growth_factor = record.growth_factor;
      section_.backoff_factor = record.backoff_factor;
      section_.growth_interval = record.growth_interval;
      hysteresis_ = record.hysteresis;
      break;
    case ScalerAction::kScale:
      scaled_ = true;
      step_scale_ = scale_ = record.scale;
      break;
    case ScalerAction::kUnscale:
      if (own_ && early_clip_ && scaled_ && !unscaled_) follow(*std::exchange(early_clip_, std::nullopt));
      if (optimizer.unscaled && step_scale_ != 1 && !several_) misuse(Misuse::kUnscaleTwice, record, true);
      optimizer.unscaled = unscaled_ = true;
      found_ = found_ || record.found_inf;
      break;
    case ScalerAction::kStep:
    case ScalerAction::kSkip:
      if (optimizer.stepped && !several_) misuse(Misuse::kStepTwice, record, record.action == ScalerAction::kStep);
      optimizer.stepped = true;
      found_ = false;
      if (record.action == ScalerAction::kSkip) {
        skip_ = true;
        note(record, "skip");
      }
      break;
    case ScalerAction::kUpdate:
      optimizers_.clear();
      follow_scale(record);
      break;
    case ScalerAction::kSet:
      optimizers_.clear();
      scale_ = record.scale;
      decline_ = {};
      note(record, "set");
      break;
    case ScalerAction::kGaveUp:
      optimizers_.clear();
      follow_scale(record);
      note(record, "gave_up");
      give_up(record);
      break;
    case ScalerAction::kRefused:
      note(record, "refused");
      misuse(Misuse::kRefused, record, false);
      break;
    case ScalerAction::kClip:
      break;
  }
}

void ScalerWatch::on_own_clip(double by, std::uint32_t step) {
  const bool told = early_clip_.has_value();  // by the call itself, with its norm
  if (told || !in_step_ || step_ != step || !scaled_ || unscaled_ || step_scale_ == 1) return;
  ScalerRecord record;
  record.action = ScalerAction::kClip;
  record.step = step;
  misuse(Misuse::kClipBeforeUnscale, record, by < 1);
  for (MisuseState& state : misuses_) {
    if (state.kind == Misuse::kClipBeforeUnscale && by < state.clipped_by) state.clipped_by = by;
  }
}

// An update, in a step of which the scaler knows nothing, with what was bad when it skipped the step before.
void ScalerWatch::note_step_after_skip(const OpInView& op) {
  const std::uint32_t step = op.record->step;
  if (!last_skip_ || step != *last_skip_ + std::uint64_t{1} || several_ || (in_step_ && step_ == step)) return;
  const auto is_bad = [](const Value* in) { return in != nullptr && in->bad != 0; };
  const auto lasts = [&](const Value* in) {
    return is_bad(in) && (in->has_role(TensorRole::kParameter) || in->has_role(TensorRole::kState));
  };
  const auto was_skipped = [&](const Value* in) { return is_bad(in) && in->made_step <= *last_skip_; };
  if (std::none_of(op.in.begin(), op.in.end(), was_skipped) || std::any_of(op.in.begin(), op.in.end(), lasts)) return;
  misuse_of_op(Misuse::kSteppedAfterSkip, op, true);
}

// An update with gradients that carry the scale: its optimizer was not told to the scaler.
void ScalerWatch::note_step_past(const OpInView& op) {
  if (several_ || !scaled_ || !(step_scale_ > 1)) return;
  MisuseState* state = nullptr;
  if (scaled_gradients_.are_used_by(op)) state = misuse_of_op(Misuse::kSteppedPast, op, false);
  for (MisuseState& known : misuses_) {
    if (known.kind == Misuse::kSteppedPast && known.call_site == names_.text(op.record->call_site)) state = &known;
  }
  if (state != nullptr && divides_by_size(op)) state->sizes_count = false;
}

// The op of an optimizer belongs to the misuse, of which each call has ops for each parameter. nullptr: there are too many.
ScalerWatch::MisuseState* ScalerWatch::misuse_of_op(Misuse kind, const OpInView& op, bool did_harm) {
  const std::uint32_t step = op.record->step;
  const auto is_it = [&](const MisuseState& known) { return known.kind == kind; };
  auto state = std::find_if(misuses_.begin(), misuses_.end(), is_it);
  if (state == misuses_.end() || state->last_step != step) {
    ScalerRecord record;
    record.seq = op.record->seq;
    record.step = step;
    misuse(kind, record, did_harm);
    state = std::find_if(misuses_.begin(), misuses_.end(), is_it);
  }
  if (state == misuses_.end()) return nullptr;
  if (state->first_step != step) return &*state;
  if (state->call_site.empty()) state->call_site = names_.text(op.record->call_site);
  const std::string path = names_.text(op.record->module);
  const bool known = std::find(state->parameters.begin(), state->parameters.end(), path) != state->parameters.end();
  if (!path.empty() && !known && state->parameters.size() < kMaxParameters) state->parameters.push_back(path);
  return &*state;
}

void ScalerWatch::on_op(const OpInView& op, std::optional<double> factor) {
  const Phase phase = op.record->phase;
  const bool by_scale = factor && *factor != 1 && std::fabs(*factor * scale_ - 1) <= kSameFactor;
  if (phase == Phase::kOptimizer) note_step_past(op);
  scaled_gradients_.on_op(op, by_scale);
  if (phase < Phase::kComm || phase > Phase::kOptimizer) return;
  if (phase == Phase::kClip && clip_site_.empty()) clip_site_ = names_.text(op.record->call_site);
  if (phase == Phase::kOptimizer) {
    note_step_after_skip(op);
    optimizes_ = true;
    divides_by_size_ = divides_by_size_ || divides_by_size(op);
    const bool past = in_step_ && scaled_ && !unscaled_ && stepped_past_.call_site.empty();
    if (past) stepped_past_.call_site = names_.text(op.record->call_site);
  }
  // A fused optimizer of a package may be given the scale.
  unscales_ = unscales_ || !op.info->known() || by_scale;
}

std::optional<ScalerWatch::MisuseState> ScalerWatch::never_unscaled() const {
  if (!told_ || unscales_ || several_ || !optimizes_ || stepped_past_.count == 0) return std::nullopt;
  MisuseState state = stepped_past_;
  state.kind = Misuse::kNeverUnscaled;
  state.steps = state.count;  // one of each
  const bool clipped = std::any_of(misuses_.begin(), misuses_.end(), [](const MisuseState& known) {
    return known.kind == Misuse::kClipBeforeUnscale && known.did_harm;
  });
  state.sizes_count = !divides_by_size_ && !clipped;
  return state;
}

void ScalerWatch::judge_streak(const StepOutcome& outcome, std::uint32_t step) {
  if (!outcome.held_back) {
    streak_ = same_scale_skips_ = low_skips_ = 0;
    const bool steady = outcome.scale >= kHopelessScale || held_steps_ + 1 >= kStableSteps;
    const bool can = collapse_ && (collapse_->kind == Collapse::kFloor || collapse_->kind == Collapse::kEndless);
    if (can && steady) collapse_->fault = false;
    return;
  }
  if (streak_++ == 0) {
    streak_from_ = step;
    streak_scale_ = outcome.scale;
  }
  // One that hysteresis took says nothing of a floor.
  same_scale_skips_ = absorbed_ ? 0 : streak_ > 1 && outcome.scale == last_skip_scale_ ? same_scale_skips_ + 1 : 1;
  last_skip_scale_ = outcome.scale;
  low_skips_ = outcome.scale < kLowScale ? low_skips_ + 1 : 0;
  section_.longest_streak = std::max(section_.longest_streak, streak_);
  if (!section_.dynamic) return;
  if (low_skips_ >= kSkipsBelowOne || outcome.scale < kHopelessScale) {
    collapse(Collapse::kEndless, true, step);
  } else if (same_scale_skips_ >= kSkipsAtFloor) {
    const bool remade = made_steps_ >= same_scale_skips_;
    collapse(remade ? Collapse::kRemade : Collapse::kFloor, true, step);
    if (remade && collapse_->kind == Collapse::kRemade) collapse_->scale = outcome.scale;
  } else if (streak_ >= kSkipsWithoutEnd) {
    collapse(Collapse::kEndless, true, step);
  } else if (low_skips_ > 0) {
    collapse(Collapse::kBelowOne, false, step);
  }
  if (collapse_ && collapse_->streak_from == streak_from_ && collapse_->skips < streak_) {
    collapse_->skips = streak_;
    if (collapse_->kind != Collapse::kRemade) collapse_->scale = scale_;
  }
}

StepOutcome ScalerWatch::on_step_end(const StepRecord& step) {
  const bool ours = in_step_ && step_ == step.step;
  StepOutcome outcome;
  // A scaler that tells nothing of itself skips steps. What the program gave up itself was scaled only if it scales.
  outcome.scaled = (step.skipped && step.ending == StepEnding::kOptimizer) || (seen_ && (!ours || scaled_ || skip_ || unscaled_));
  outcome.held_back = step.skipped || (ours && (skip_ || found_));
  outcome.unfinished = step.ending == StepEnding::kEnd && ours && scaled_;
  outcome.scale = ours && scaled_ ? step_scale_ : !own_ && std::isfinite(step.scale) ? step.scale : scale_;
  if (ours && scaled_ && step_scale_ > 1 && !step.skipped && step.ending == StepEnding::kOptimizer) {
    if (stepped_past_.count++ == 0) stepped_past_.first_step = step.step;
    stepped_past_.last_step = step.step;
    stepped_past_.scale = step_scale_;
  }
  scaled_gradients_.end_step();
  last_skip_ = ours && skip_ ? std::optional(step.step) : std::nullopt;
  const bool made = ours && made_;
  in_step_ = scaled_ = skip_ = made_ = found_ = unscaled_ = false;
  for (MisuseState& state : misuses_) state.went_on = state.went_on || step.step > state.last_step;
  if (!seen_) return outcome;

  ++section_.steps;
  section_.skipped += outcome.held_back ? 1 : 0;
  points_.add({step.step, outcome.scale, outcome.held_back});
  // Steps that the trace no longer holds may have gone through.
  if (step.step > next_step_) streak_ = same_scale_skips_ = low_skips_ = made_steps_ = 0;
  next_step_ = step.step + 1;
  made_steps_ = made ? made_steps_ + 1 : 0;
  judge_streak(outcome, step.step);
  held_steps_ = outcome.held_back ? 0 : outcome.scale == held_scale_ ? held_steps_ + 1 : 1;
  held_scale_ = outcome.scale;
  if (!std::isfinite(outcome.scale)) return outcome;
  if (outcome.held_back) {
    least_skipped_ = std::min(least_skipped_.value_or(outcome.scale), outcome.scale);
    clean_steps_.erase(clean_steps_.lower_bound(*least_skipped_), clean_steps_.end());
  } else if (clean_steps_.size() < kMaxScales || clean_steps_.contains(outcome.scale)) {
    ++clean_steps_[outcome.scale];
  }
  return outcome;
}

std::optional<ScalerWatch::StableScale> ScalerWatch::recommended_scale() const {
  if (!section_.dynamic || !least_skipped_) return std::nullopt;
  std::optional<StableScale> best;
  for (const auto& [scale, steps] : clean_steps_) {
    if (scale < *least_skipped_ && steps >= kStableSteps) best = StableScale{scale, steps};
  }
  return best;
}

std::optional<ScalerSection> ScalerWatch::section() const {
  if (!seen_) return std::nullopt;
  ScalerSection out = section_;
  out.final_scale = scale_;
  out.ends_in_streak = streak_ > 0;
  out.points = points_.points();
  out.events = first_events_;
  out.events.insert(out.events.end(), last_events_.begin(), last_events_.end());
  out.events_omitted = events_ - out.events.size();
  return out;
}

}  // namespace nanhunt::analyze
