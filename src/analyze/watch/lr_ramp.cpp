// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/lr_ramp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

// What too high a rate makes: numbers that grow out of their format.
bool is_growth(FindingClass cls) {
  return cls == FindingClass::kOverflow || cls == FindingClass::kExploding || cls == FindingClass::kScalerCollapse;
}

}  // namespace

bool LrRampWatch::is_ramp() const { return count_ >= kRampSteps && last_lr_ / first_lr_ >= kRampFactor; }

void LrRampWatch::add(std::uint32_t step, double lr, double loss) {
  if (count_++ == 0) {
    range_ = {};
    stops_at_.reset();
    bad_steps_ = 0;
    first_step_ = step;
    first_lr_ = lr;
  }
  last_step_ = step;
  last_lr_ = lr;
  last_loss_ = loss;
  if (!std::isfinite(loss)) ++bad_steps_;
  if (range_.points().size() == kMaxPoints) return;
  if (range_.add(step, lr, loss) && !stops_at_) stops_at_ = step;
}

void LrRampWatch::on_step_end(std::uint32_t step, double lr, double loss) {
  if (ended_) {
    ++steps_after_;
    came_back_ = came_back_ || is_sound(loss);
    return;
  }
  const bool grows = count_ > 0 && step == last_step_ + 1 && last_lr_ > 0 && lr > last_lr_ * (1 + kRampTolerance);
  const double factor = grows ? lr / last_lr_ : 0;
  const bool follows = grows && (count_ == 1 || std::abs(factor - factor_) <= kRampTolerance * factor_);
  if (follows) {
    factor_ = factor;
    add(step, lr, loss);
    return;
  }
  if (is_ramp()) {
    ended_ = true;
    steps_after_ = 1;
    loss_after_ = loss;
    lr_after_ = lr;
    came_back_ = is_sound(loss);
    return;
  }
  const auto [before_step, before_lr, before_loss] = std::tuple(last_step_, last_lr_, last_loss_);
  count_ = 0;
  if (grows) add(before_step, before_lr, before_loss);
  factor_ = factor;
  add(step, lr, loss);
}

std::optional<LrRamp> LrRampWatch::ramp() const {
  if (!is_ramp() || is_warm_up()) return std::nullopt;
  LrRamp ramp;
  ramp.first_step = first_step_;
  ramp.last_step = last_step_;
  ramp.points = range_.points();
  ramp.stops_at = stops_at_;
  // What a finder would have seen.
  const std::size_t seen = stops_at_ ? *stops_at_ - first_step_ + 1 : ramp.points.size();
  ramp.suggestion = suggest_lr(std::span(ramp.points).first(seen));
  return ramp;
}

// The last loss that was finite by then says it: one that jumps to infinity at once may be a fault of the model.
bool LrRampWatch::had_diverged_by(std::uint32_t step) const {
  double best = std::numeric_limits<double>::infinity(), last = 0;
  for (const LrPoint& point : range_.points()) {
    if (point.step > step) break;
    if (std::isfinite(point.smoothed)) best = std::min(best, point.smoothed);
    if (std::isfinite(point.loss)) last = point.loss;
  }
  return best > 0 && last > kLrDivergence * best;  // of a loss below 0 no multiple says anything
}

double LrRampWatch::rate_at(std::uint32_t step) const {
  return range_.points()[std::min<std::size_t>(step - first_step_, range_.points().size() - 1)].lr;
}

bool LrRampWatch::is_sound(double loss) const { return loss <= kRestoredLoss * range_.points().front().loss; }

bool LrRampWatch::was_left() const { return steps_after_ > 0 && !came_back_; }

// A warm-up goes on at the rate that it has reached.
bool LrRampWatch::is_warm_up() const { return steps_after_ > 0 && lr_after_ >= last_lr_ * (1 - kRampTolerance); }

bool LrRampWatch::ran_on() const { return bad_steps_ > kFinderBadSteps && !came_back_; }

void LrRampWatch::conclude(std::vector<Finding>& findings) const {
  if (!is_ramp() || is_warm_up()) return;
  const auto is_by_design = [&](const Finding& f) {
    if (began(f) < first_step_) return false;
    // Gradients that still overflow when the ramp ends the run: whether they had gone on is no question then.
    if (f.cls == FindingClass::kScalerCalibration) {
      if (ran_on()) return false;
      return !f.benign && steps_after_ == 0 && had_diverged_by(last_step_);
    }
    if (f.severity != Severity::kFault || !is_growth(f.cls) || (began(f) > last_step_ && !was_left())) return false;
    return had_diverged_by(std::min(began(f), last_step_));
  };
  const auto first = std::find_if(findings.begin(), findings.end(), is_by_design);
  if (first == findings.end()) return;
  std::vector<std::string> others;
  for (const Finding& f : findings) {
    if (&f != &*first && is_by_design(f)) others.push_back(f.title);
  }
  Finding f = *first;
  const std::string rates = fmt::format("from {} to {}", number(first_lr_), number(last_lr_));
  std::string where = f.place.op.value_or("several ops") + (f.place.module ? " in " + *f.place.module : "");
  f.evidence.insert(f.evidence.begin(), fmt::format("The first of what overflowed was at {} ({}), at a rate of {}: {}.",
                                                    where, phase_name(f.place.phase),
                                                    number(rate_at(began(f))),
                                                    f.title));
  if (!others.empty()) f.evidence.push_back((ran_on() ? "Also: " : "Also by design: ") + join(others, 6) + ".");
  f.cls = FindingClass::kExploding;
  f.place.op.reset();
  f.place.module.reset();
  if (ran_on()) {
    f.title = fmt::format("Training diverged under a learning rate that only grew: {}", rates);
    f.explanation = fmt::format(
        "From step {} to step {} the learning rate grew by {} a step, {}, until each update was larger than the weights "
        "could bear. No learning rate finder does this: it stops at the first loss that is not finite, or puts the weights "
        "back, and here {} of the ramp's steps had such a loss.{} No op is at fault.",
        first_step_, last_step_, percent(factor_ - 1), rates, bad_steps_,
        stops_at_ ? fmt::format(" The smoothed loss passed {} times its best in step {}, at a rate of {}.", number(kLrDivergence),
                                *stops_at_, number(rate_at(*stops_at_)))
                  : "");
    f.advice = {make_advice("bound-schedule"), make_advice("stop-finder")};
    std::erase_if(findings, is_by_design);
    findings.insert(findings.begin(), std::move(f));
    return;
  }
  f.explanation = fmt::format(
      "From step {} to step {} the learning rate grew by {} a step, {}: a learning rate finder's ramp.{} Numbers that "
      "overflow after the loss has diverged are what it does by design, not a fault of the model, its formats or its "
      "loss scale.",
      first_step_, last_step_, percent(factor_ - 1), rates,
      stops_at_ && *stops_at_ < last_step_
          ? fmt::format(" At step {} the smoothed loss had passed {} times its best: a finder stops there, and this one "
                        "ran on.", *stops_at_, number(kLrDivergence))
          : "");
  if (was_left()) {
    f.title = fmt::format("A learning rate finder left its ruined weights: the rate went {}, nothing was restored, and "
                          "training went on", rates);
    f.explanation += fmt::format(
        " But {} trained what it had left: the first one, at a rate of {}, had a loss of {}, where the ramp began with {}.",
        count_of(steps_after_, "step"), number(lr_after_), number(loss_after_), number(range_.points().front().loss));
    f.advice = {make_advice("restore-after-finder"), make_advice("stop-finder")};
  } else {
    f.title = fmt::format("A learning rate finder ran past divergence, by design: the rate went {}", rates);
    f.severity = Severity::kInfo;
    f.benign = true;
    f.advice = {make_advice("stop-finder")};
  }
  std::erase_if(findings, is_by_design);
  findings.insert(findings.begin(), std::move(f));
}

}  // namespace nanhunt::analyze
