// SPDX-License-Identifier: Apache-2.0
// scaler_calibration and scaler_collapse.
#include "src/analyze/rules/run/scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

std::string scale_range(const std::vector<const ScaleTrial*>& trials) {
  double least = trials.front()->least, largest = trials.front()->largest;
  for (const ScaleTrial* trial : trials) {
    least = std::min(least, trial->least);
    largest = std::max(largest, trial->largest);
  }
  return least == largest ? "scale " + scale_text(largest)
                          : fmt::format("scales {} to {}", scale_text(largest), scale_text(least));
}

std::string place_words(const Finding& f) {
  const std::string op = f.place.op.value_or("an op that was not watched");
  return f.place.module ? op + " in " + *f.place.module : op;
}

// Magnitude makes Inf. It makes NaN in formats without Inf, or inside a sum of products that is kept in 16 bits, as
// fused kernels and reductions may keep it; any other NaN of finite numbers is there at every scale.
bool may_be_magnitude(const Case& c) {
  const ValueStats& out = c.output->stats;
  if (!out.counted() || out.inf() > 0 || !format_limits(c.stored).has_inf) return true;
  if (dtype_size(c.context->op.compute_dtype) <= 2) return true;
  const std::string forward = forward_op(c.op());
  const OpInfo& info = forward.empty() ? *c.info : op_info(forward);
  return !info.known() || info.has(kInnerProducts) || info.has(kSoftmax);
}

}  // namespace

Excuse excuse_of(const Case& c, FindingClass cls, const ScalerWatch& scaler) {
  const Birth& birth = c.birth;
  const Phase phase = birth.at.phase;
  const bool may_be_scaled = cls == FindingClass::kOverflow || cls == FindingClass::kComm;
  if (!may_be_scaled || birth.kind != BirthKind::kOp) return Excuse::kNone;
  if (phase != Phase::kScale && phase != Phase::kBackward && phase != Phase::kComm) return Excuse::kNone;
  if (!may_be_magnitude(c)) return Excuse::kNone;
  if (c.call != nullptr && c.call->unknown.empty() && !c.call->can_pass) return Excuse::kNone;  // no scale did that
  const ScaleTrial& trial = birth.trial;
  const bool scaled = trial.scaled && (trial.ended > 0 || scaler.seen());
  if (!scaled || !birth.harmed_only_gradients() || !trial.all_held_back) return Excuse::kNone;
  if (!trial.open) return Excuse::kCalibrated;
  // A static scale never gets lower: what it keeps skipping, it will skip for ever.
  return trial.kept || scaler.dynamic() || scaler.streak() < kSkipsAtFloor ? Excuse::kOpen : Excuse::kNone;
}

void blame_scale(const Case& c, FindingClass cls, Diagnosis& diagnosis, const ScalerWatch& scaler) {
  const ScaleTrial& trial = c.birth.trial;
  const Phase phase = c.birth.at.phase;
  const bool carries_scale = phase == Phase::kScale || phase == Phase::kBackward;
  if (cls != FindingClass::kOverflow || !carries_scale || !scaler.seen()) return;
  if (scaler.dynamic()) {
    const std::vector<SinkHit>& sinks = c.birth.sinks;
    const bool stopped = !sinks.empty() && std::all_of(sinks.begin(), sinks.end(), [](const SinkHit& sink) {
      return sink.kind == TensorRole::kOutput;
    });
    if (!stopped || !(c.birth.scale > 1) || !may_be_magnitude(c)) return;
    diagnosis.explanation += fmt::format(
        " The loss is multiplied by a scale of {}, and so are its gradients. A dynamic scaler skips such a step and "
        "lowers its scale; the program ended before that, as it does where anomaly detection is on.",
        scale_text(c.birth.scale));
    diagnosis.advice.insert(diagnosis.advice.begin(), "init-scale");
    return;
  }
  if (!trial.scaled || trial.ended == 0 || !(trial.largest > 1) || !may_be_magnitude(c)) return;
  diagnosis.explanation += fmt::format(
      " The loss is multiplied by a static scale of {}, and so are its gradients: without it they would be that much "
      "smaller. {}",
      scale_text(trial.largest),
      trial.all_held_back ? "It never gets lower." : "It never gets lower, and no step was held back.");
  diagnosis.advice.insert(diagnosis.advice.begin(), "lower-static-scale");
}

void report_calibration(Finding& f, const std::vector<const ScaleTrial*>& trials, const ScalerWatch& scaler) {
  const bool lowered =
      std::all_of(trials.begin(), trials.end(), [](const ScaleTrial* trial) { return trial->lowered; });
  double fits = trials.front()->gone_at;
  for (const ScaleTrial* trial : trials) fits = std::min(fits, trial->gone_at);
  f.cls = FindingClass::kScalerCalibration;
  f.severity = Severity::kInfo;
  f.benign = true;
  if (!lowered) f.confidence = Confidence::kInferred;
  const std::string range = scale_range(trials);
  f.title = fmt::format("The loss scaler calibrated itself: gradients overflowed at {}, {} held back, {} fits", range,
                        f.bad_steps.count == 1 ? "1 step was" : fmt::format("{} steps were", f.bad_steps.count),
                        scale_text(fits));
  f.explanation = fmt::format(
      "Forward was finite. Multiplied by the scale, gradients passed what the format holds, first in {}. The scaler "
      "skipped {}, no parameter, state or buffer was touched, and {}. This is how a dynamic scale finds its size.",
      place_words(f), f.bad_steps.count == 1 ? "that step" : "those steps",
      lowered ? "at a lower scale the same op stayed finite"
              : "the next steps stayed finite, though not always at a lower scale");
  f.advice.clear();
  if (const auto held = scaler.recommended_scale()) {
    Advice advice = make_advice("init-scale");
    advice.text = fmt::format("Start the scaler with init_scale = {}.", scale_text(held->scale));
    advice.why = fmt::format("No step of this run was skipped at {} or at a lower scale, and {} went through at it.",
                             scale_text(held->scale), count_of(static_cast<std::int64_t>(held->steps), "step"));
    f.advice.push_back(std::move(advice));
  }
}

void report_open_streak(Finding& f, const std::vector<const ScaleTrial*>& trials) {
  f.cls = FindingClass::kScalerCalibration;
  f.severity = Severity::kInfo;
  f.confidence = Confidence::kInferred;
  f.title = fmt::format("The trace ends while the loss scaler skips steps: gradients overflowed at {}",
                        scale_range(trials));
  f.explanation = fmt::format(
      "Forward was finite and nothing was harmed. Whether a lower scale cures {} is not known: no clean step was "
      "recorded after the last skip.",
      place_words(f));
  f.advice = {make_advice("record-longer")};
}

void report_collapse(Finding& f, const ScalerWatch::CollapseState& s) {
  using Kind = ScalerWatch::Collapse;
  // Where nothing was seen underneath, magnitude is the likely cause.
  const bool too_large = !f.place.op || f.cls == FindingClass::kOverflow;
  const bool passes_fp16 = too_large && (!f.place.op || !f.output || f.output->dtype == DType::kF16);
  f.cls = FindingClass::kScalerCollapse;
  f.cause.clear();
  f.severity = s.fault ? Severity::kFault : Severity::kWarning;
  f.benign = false;
  if (!f.place.op) f.scale = s.scale;  // else that of the step it is placed in
  const std::string under = f.place.op ? fmt::format(" Underneath: {} ({}, step {}).", place_words(f),
                                                     phase_name(f.place.phase), f.place.step)
                                       : " What made the gradients bad was not watched.";
  const std::string way = s.skips == 0 ? "The scale is " + scale_text(s.scale)
                                       : fmt::format("{} in a row took the scale from {} to {}",
                                                     count_of(s.skips, "skipped step"), scale_text(s.from_scale),
                                                     scale_text(s.scale));
  const bool knows_cure = std::any_of(f.advice.begin(), f.advice.end(),
                                      [](const Advice& one) { return tried(one) == Tried::kOnTheseNumbers; });
  // What the scale itself made bad, no cure of the op there mends.
  if (f.advice.empty() || f.place.phase == Phase::kUnscale) f.advice = {make_advice("cure-origin")};
  switch (s.kind) {
    case Kind::kZero:
      f.title = fmt::format("The loss scale fell to {}: it cannot recover", scale_text(s.scale));
      f.explanation = fmt::format(
          "{}. Below 1.18e-38 the factor 1 / scale is infinite in fp32: zero gradients become NaN, the check before it "
          "sees nothing, and the optimizer takes the step.{}",
          way, under);
      break;
    case Kind::kInfinite:
      f.title = fmt::format("The loss scale became {}: it cannot recover", scale_text(s.scale));
      f.explanation = "Every scaled loss is infinite from here on, and half of infinity is infinity." + under;
      f.advice = {make_advice("cap-scale")};
      break;
    case Kind::kFloor:
      f.title = fmt::format("The loss scale stands at {} and steps are skipped all the same", scale_text(s.scale));
      f.explanation = fmt::format(
          "{} at a scale that does not get lower: it is at its floor, and the gradients overflow there too.{}",
          count_of(s.skips, "step") + " in a row were skipped", under);
      break;
    case Kind::kRemade:
      f.title = fmt::format("A new loss scaler is made in every step: its scale is {} again each time",
                            scale_text(s.scale));
      f.explanation = fmt::format(
          "{}: the gradients overflow at the scale that a new scaler starts with, and what each one lowers it to is "
          "gone with it.{}",
          count_of(s.skips, "step") + " in a row were skipped", under);
      f.advice = {make_advice("one-scaler")};
      break;
    case Kind::kEndless:
      if (!s.fault) {
        f.title = fmt::format("The loss scale took {} skipped in a row to settle, from {} to {}",
                              count_of(s.skips, "step"), scale_text(s.from_scale), scale_text(s.scale));
        f.explanation = "Nothing was learnt in all these steps: the scale started far too large." + under;
        f.advice = {make_advice("init-scale")};
        break;
      }
      f.title = s.skips < kSkipsBelowOne
                    ? fmt::format("The loss scale falls without end, down to {}: steps are skipped again and again",
                                  scale_text(s.scale))
                    : fmt::format("The loss scale falls without end: {} skipped in a row, down to {}",
                                  count_of(s.skips, "step"), scale_text(s.scale));
      f.explanation = fmt::format("{}, and lowering it changes nothing: the bad numbers do not come from the scale.{}",
                                  way, under);
      break;
    case Kind::kBelowOne:
      f.title = fmt::format("The loss scale fell below 1, to {}", scale_text(s.scale));
      f.explanation = fmt::format(
          "{}. {}{}", way,
          passes_fp16  ? "Gradients overflow even without any scaling, which often means that a model made for bf16 runs "
                         "in fp16."
          : too_large ? "Gradients overflow even without any scaling."
                      : "The bad numbers do not come from the scale.",
          under);
      if (passes_fp16 && !knows_cure) f.advice = {make_advice("bf16"), make_advice("lower-magnitude")};
      break;
    case Kind::kGaveUp: {
      f.title = fmt::format("The loss scaler ended training: its scale {} could not get lower", scale_text(s.scale));
      const std::string kept =
          s.absorbed == 0 ? ""
                          : fmt::format(" Hysteresis took {} of them, and was not filled up again.", s.absorbed);
      f.explanation = fmt::format(
          "{} took the scale from {} to {}, and between them it never grew: each overflow lowers it, and only a whole "
          "window without one raises it.{} At the smallest one its library ends training.{}",
          count_of(s.skips, "skipped step"), scale_text(s.from_scale), scale_text(s.scale), kept, under);
      break;
    }
    case Kind::kNeverGrows:
      f.title = fmt::format("The loss scale {} can never grow again", scale_text(s.scale));
      f.explanation = fmt::format(
          "The scale grows when the count of clean steps equals the growth interval {}. The count is {} already, so it "
          "never will unless an overflow resets it.",
          s.interval, s.tracker);
      f.advice = {make_advice("interval-above-count")};
      break;
  }
  if (!s.fault && s.kind == Kind::kFloor)
    f.evidence.push_back("Later steps went through: it did recover.");
}

}  // namespace nanhunt::analyze
