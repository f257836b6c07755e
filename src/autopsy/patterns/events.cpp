// SPDX-License-Identifier: Apache-2.0
// What happened around the first bad number: after_resume, lr_event, periodic, eval_only.
#include <algorithm>
#include <cmath>

#include "src/autopsy/judge.h"
#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

const Curve* first_bad_of(const Curves& curves) {
  if (curves.loss.bad() && !curves.gradient_first()) return &curves.loss;
  return curves.grad_norm.bad() ? &curves.grad_norm : nullptr;
}

struct BadStretches {
  std::vector<std::size_t> starts;  // the first bad point of each
  bool recovered = false;           // a finite number came after the last but one, or the last
  bool ends_well = false;
};

BadStretches stretches_of(const Curve& curve) {
  BadStretches out;
  bool was_bad = false;
  std::size_t restart = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    // What begins anew has not recovered.
    while (restart < curve.series->restarts.size() && curve.series->restarts[restart] <= i) {
      was_bad = was_bad && curve.series->restarts[restart] != i;
      ++restart;
    }
    const bool bad = !is_finite(curve.point(i).value);
    if (bad && !was_bad) out.starts.push_back(i);
    if (!bad && was_bad) out.recovered = true;
    was_bad = bad;
  }
  out.ends_well = !was_bad;
  return out;
}

// The distance at which bad stretches return; unknown where they do not keep one, or one point of the log off.
double period_of(const Curve& curve, const std::vector<std::size_t>& starts) {
  if (starts.size() < limits::kPeriods) return kUnknown;
  const double first = curve.point(starts[1]).at - curve.point(starts[0]).at;
  const double grid = curve.size() > 1 ? std::fabs(curve.point(1).at - curve.point(0).at) : 0;
  for (std::size_t i = 2; i < starts.size(); ++i) {
    const double distance = curve.point(starts[i]).at - curve.point(starts[i - 1]).at;
    if (std::fabs(distance - first) > grid) return kUnknown;
  }
  return first > 0 ? first : kUnknown;
}

}  // namespace

std::optional<Guess> judge_after_resume(const Curves& curves) {
  const Curve* curve = first_bad_of(curves);
  if (curve == nullptr) return std::nullopt;
  const auto restart = curve->restart_before(curve->first_bad);
  const Statement& says = curves.evidence->said_resume;
  if (!restart && !says.text.empty() && curve->first_bad <= limits::kLater) {
    Guess out;
    out.began = began_at(*curve, curve->first_bad);
    out.evidence.push_back({"the log says: " + says.text, says.source});
    out.evidence.push_back(
        {std::to_string(curve->first_bad) + " entries after the start were finite", curve->series->source});
    out.checks = {"whether the checkpoint holds NaN: nanhunt check",
                  "whether optimizer state, loss scale and learning rate were restored"};
    return out;
  }
  if (!restart || curve->first_bad - *restart > limits::kLater) return std::nullopt;
  // What begins at the first step again is another run, and resumes nothing.
  if (curve->point(*restart).at <= curve->point(0).at) return std::nullopt;
  const std::size_t after = curve->first_bad - *restart;
  Guess out;
  out.confidence =
      after <= limits::kSoon && *restart >= limits::kHealthyStart ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(*curve, curve->first_bad);
  const Unit unit = curve->series->unit;
  out.evidence.push_back({"the log ends at " + position_text(unit, curve->point(*restart - 1).at) + " and goes on at " +
                              position_text(unit, curve->point(*restart).at) + ", as after a restart",
                          curve->series->source});
  out.evidence.push_back({std::to_string(*restart) +
                              " entries before the restart were finite; the first bad one is number " +
                              std::to_string(after + 1) + " after it",
                          curve->series->source});
  out.checks = {"whether optimizer state, loss scale and learning rate were restored",
                "whether the checkpoint holds NaN", "the order of batches after the restart"};
  return out;
}

std::optional<Guess> judge_lr_event(const Curves& curves) {
  const Curve* curve = first_bad_of(curves);
  const Curve& rate = curves.learning_rate;
  if (rate.bad()) {
    Guess out;
    out.confidence = Confidence::kLikely;
    out.began = began_at(rate, rate.first_bad);
    out.evidence.push_back({rate.series->name + " was " + number_text(rate.point(rate.first_bad).value) + " at " +
                                position_text(rate.series->unit, rate.point(rate.first_bad).at),
                            rate.series->source});
    out.checks = {"the learning rate schedule: it is not finite"};
    return out;
  }
  if (curve == nullptr || !curves.comparable(*curve, rate)) return std::nullopt;
  const std::size_t last = rate.last_at(curve->point(curve->first_bad).at);
  if (last == kNoPoint || last < 2) return std::nullopt;
  double factor = 1;
  std::size_t at = 0;
  for (std::size_t i = std::max<std::size_t>(2, last - std::min(last, limits::kSoon - 1)); i <= last; ++i) {
    const double before = rate.point(i - 1).value;
    if (before > 0 && rate.point(i).value / before > factor) {
      factor = rate.point(i).value / before;
      at = i;
    }
  }
  if (factor < limits::kRateStep) return std::nullopt;
  Guess out;
  out.confidence = factor >= limits::kRateJump ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(*curve, curve->first_bad);
  out.evidence.push_back({rate.series->name + " went from " + number_text(rate.point(at - 1).value) + " to " +
                              number_text(rate.point(at).value) + " at " +
                              position_text(rate.series->unit, rate.point(at).at),
                          rate.series->source});
  out.evidence.push_back({"the first bad number came at " + position_text(curve->series->unit, *out.began.first_bad),
                          curve->series->source});
  out.checks = {"the learning rate schedule: the end of warm-up, a restart, another phase"};
  return out;
}

std::optional<Guess> judge_periodic(const Curves& curves) {
  const Curve* curve = first_bad_of(curves);
  if (curve == nullptr) return std::nullopt;
  const BadStretches bad = stretches_of(*curve);
  const bool steady_scaler = curve == &curves.grad_norm && !curves.scales.empty();
  if (!bad.recovered || steady_scaler) return std::nullopt;  // a scaler skips such steps, and that is its work
  const double period = period_of(*curve, bad.starts);
  Guess out;
  out.confidence = is_finite(period) ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(*curve, curve->first_bad);
  const Unit unit = curve->series->unit;
  out.evidence.push_back({curve->series->name + " was bad " + std::to_string(bad.starts.size()) +
                              " times and finite again" + (bad.ends_well ? " each time" : " in between"),
                          curve->series->source});
  if (is_finite(period)) {
    const std::string each(unit_name(unit));
    out.evidence.push_back({"it came back every " + (period == 1 ? each : number_text(period) + " " + each + "s") +
                                ", first at " + position_text(unit, *out.began.first_bad),
                            curve->series->source});
  }
  out.unlikely = {"NaN in the weights: they would not have recovered"};
  out.checks = {"the batches of these steps; the same distance each time means the same batch in each epoch"};
  return out;
}

std::optional<Guess> judge_eval_only(const Curves& curves) {
  const Curve& eval = curves.eval_loss;
  const Curve& loss = curves.loss;
  if (!eval.bad() || loss.bad() || curves.grad_norm.bad()) return std::nullopt;
  const double at = eval.point(eval.first_bad).at;
  const bool after = curves.comparable(eval, loss) && loss.size() != 0 && loss.point(loss.size() - 1).at > at;
  // Finite again: NaN may also stand for what was not evaluated. A loss that is 0 to the end may hide one that is bad.
  const bool recovered = stretches_of(eval).recovered;
  std::size_t zeros = 0;
  while (zeros < loss.size() && loss.point(loss.size() - 1 - zeros).value == 0) ++zeros;
  const bool sure = after && !recovered && loss.size() >= 3 && zeros < limits::kFrozen;
  Guess out;
  out.confidence = sure ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(eval, eval.first_bad);
  out.evidence.push_back({eval.series->name + " was " + number_text(eval.point(eval.first_bad).value) + " at " +
                              position_text(eval.series->unit, at),
                          eval.series->source});
  if (loss.there()) {
    out.evidence.push_back({"all " + std::to_string(loss.size()) + " losses of training are finite" +
                                (after ? ", also those after it" : ""),
                            loss.series->source});
  }
  if (recovered)
    out.evidence.push_back({"it was finite again: NaN may stand where nothing was evaluated", eval.series->source});
  if (sure) out.unlikely = {"NaN in the weights: training went on well"};
  out.checks = {"a mean over an empty batch or over labels that are all ignored", "the precision of the evaluation",
                "layers that differ in eval(): running statistics"};
  return out;
}

}  // namespace nanhunt::autopsy
