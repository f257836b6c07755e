// SPDX-License-Identifier: Apache-2.0
// How the loss looked before its first bad number: exploding, sudden, first_step.
#include <algorithm>

#include "src/autopsy/judge.h"
#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

// The curve that went bad first, and that these patterns judge: the loss, or the gradient norm before it.
const Curve* first_bad_curve(const Curves& curves) {
  if (curves.gradient_first()) return &curves.grad_norm;
  return curves.loss.bad() ? &curves.loss : nullptr;
}

// Growth of the gradient norm before the loss went bad.
Growth gradient_growth(const Curves& curves, const Curve& bad) {
  if (!curves.comparable(bad, curves.grad_norm)) return {};
  const std::size_t last = curves.grad_norm.last_at(bad.point(bad.first_bad).at);
  const std::size_t end = last == kNoPoint ? 0 : std::min(last + 1, curves.grad_norm.first_bad);
  return curves.grad_norm.growth_before(end);
}

Growth loss_growth(const Curves& curves, const Curve& bad) {
  if (&bad == &curves.loss) return curves.loss.growth_before(curves.loss.first_bad);
  if (!curves.comparable(bad, curves.loss)) return {};
  const std::size_t last = curves.loss.last_at(bad.point(bad.first_bad).at);
  return last == kNoPoint ? Growth{} : curves.loss.growth_before(std::min(last + 1, curves.loss.first_bad));
}

void add_precision(const Curves& curves, Guess& guess) {
  if (!curves.has_fp16()) return;
  for (const Setting& setting : curves.evidence->settings) {
    if (setting.value.find("16") == std::string::npos && setting.key != "fp16") continue;
    guess.evidence.push_back({"the settings say " + setting.key + " = " + setting.value, setting.source});
    return;
  }
}

}  // namespace

std::optional<Guess> judge_exploding(const Curves& curves) {
  const Curve* bad = first_bad_curve(curves);
  if (bad == nullptr) return std::nullopt;
  const Growth loss = loss_growth(curves, *bad), gradient = gradient_growth(curves, *bad);
  const auto strong = [](const Growth& one) { return one.ratio >= limits::kExplodes && one.rises >= limits::kRising; };
  const auto weak = [](const Growth& one) {
    return one.ratio >= limits::kExplodes ? one.rises >= 1 : one.ratio >= limits::kGrows && one.rises >= 2;
  };
  if (!weak(loss) && !weak(gradient)) return std::nullopt;
  Guess out;
  // A gradient norm alone that grows may also be one batch; the loss has to go along.
  out.confidence = strong(loss) ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(*bad, bad->first_bad);
  if (weak(loss)) out.evidence.push_back({growth_text(curves.loss.series->name, loss), curves.loss.series->source});
  if (weak(gradient)) {
    out.evidence.push_back({growth_text(curves.grad_norm.series->name, gradient), curves.grad_norm.series->source});
  }
  const double value = bad->point(bad->first_bad).value;
  out.evidence.push_back(
      {"then it was " + number_text(value) + " at " + position_text(bad->series->unit, *out.began.first_bad),
       bad->series->source});
  out.unlikely = {"a single bad batch: the numbers were finite and growing before"};
  out.checks = {"the learning rate and its warm-up", "gradient clipping", "the layer whose output overflows first"};
  const std::string rate =
      curves.setting("learning_rate").empty() ? curves.setting("lr") : curves.setting("learning_rate");
  if (!rate.empty()) out.checks[0] += " (the settings say " + rate + ")";
  return out;
}

std::optional<Guess> judge_first_step(const Curves& curves) {
  const Curve& loss = curves.loss;
  if (!loss.bad() || loss.first_bad > limits::kStart || loss.restart_before(loss.first_bad)) return std::nullopt;
  const double at = loss.point(loss.first_bad).at;
  // Two good losses of a log with a line every hundred steps are no start.
  const bool early = loss.series->unit == Unit::kStep && at <= limits::kFirstSteps;
  if (loss.first_bad != 0 && !early) return std::nullopt;
  // A log of another kind in the folder has losses that were good: this one holds means over much of the run, or what
  // is printed at its end. One of the same kind may be of another run.
  const auto& sources = curves.evidence->sources;
  for (const Series& other : curves.evidence->series) {
    const bool same_log = other.source == loss.series->source;
    if (other.quantity != Quantity::kLoss || &other == loss.series) continue;
    if (!same_log && sources[other.source].format == sources[loss.series->source].format) continue;
    const auto good = static_cast<std::size_t>(std::count_if(
        other.points.begin(), other.points.end(), [](const Point& point) { return is_finite(point.value); }));
    if (same_log ? loss.first_bad == 0 && good >= limits::kHealthyStart
                 : good > loss.first_bad && other.points.size() > 1)
      return std::nullopt;
  }
  Guess out;
  out.began = began_at(loss, loss.first_bad);
  const std::string where = position_text(loss.series->unit, at);
  if (loss.first_bad == 0) {
    const bool at_once = loss.series->unit == Unit::kStep && at <= 1;
    out.confidence = at_once ? Confidence::kLikely : Confidence::kPossible;
    out.evidence.push_back({"the first loss that was logged is " + number_text(loss.point(0).value) + ", at " + where,
                            loss.series->source});
    if (!at_once) out.evidence.push_back({"what came before " + where + " was not logged", loss.series->source});
    out.unlikely = {"a learning rate that is too high: nothing was trained yet"};
    if (!at_once) out.unlikely.clear();
    out.checks = {"the inputs and labels of the first batch",
                  "the weights and the checkpoint that were loaded, for NaN", "masks that leave no element"};
  } else {
    out.evidence.push_back({"only " + std::to_string(loss.first_bad) +
                                (loss.first_bad == 1 ? " good loss came before " : " good losses came before ") +
                                number_text(loss.point(loss.first_bad).value) + " at " + where,
                            loss.series->source});
    out.checks = {"the first updates: the optimizer's eps in 16 bits, the learning rate without warm-up",
                  "the first gradients: a square root of 0, a norm of 0"};
  }
  if (!curves.evidence->said_resume.text.empty()) {  // it did not begin from nothing
    out.confidence = Confidence::kPossible;
    out.unlikely.clear();
  }
  add_precision(curves, out);
  return out;
}

std::optional<Guess> judge_sudden(const Curves& curves) {
  const Curve& loss = curves.loss;
  if (!loss.bad() || curves.gradient_first() || loss.first_bad <= limits::kStart) return std::nullopt;
  if (judge_periodic(curves)) return std::nullopt;  // that one says more
  const std::size_t good = loss.good_before(loss.first_bad).size();
  const Growth own = loss.growth_before(loss.first_bad), gradient = gradient_growth(curves, loss);
  if (own.ratio >= limits::kGrows || gradient.ratio >= limits::kExplodes || good <= limits::kStart) return std::nullopt;
  Guess out;
  out.began = began_at(loss, loss.first_bad);
  const double at = *out.began.first_bad;
  const bool next_step = loss.series->unit == Unit::kStep && out.began.last_good && at - *out.began.last_good <= 1;
  const bool calm = good >= limits::kHealthyStart && gradient.ratio < limits::kGrows;
  const bool event = judge_lr_event(curves) || judge_after_resume(curves);
  out.confidence = next_step && calm && !event ? Confidence::kLikely : Confidence::kPossible;
  out.evidence.push_back({std::to_string(good) + " losses before were finite, the last " +
                              number_text(loss.good_before(loss.first_bad).back()) + " where the level was " +
                              number_text(own.level),
                          loss.series->source});
  out.evidence.push_back(
      {"then it was " + number_text(loss.point(loss.first_bad).value) + " at " + position_text(loss.series->unit, at),
       loss.series->source});
  if (!next_step)
    out.evidence.push_back({"what lies between the two was not logged: it may have grown there", loss.series->source});
  if (next_step && !event) out.unlikely = {"a learning rate that is too high: nothing grew before"};
  out.checks = {"the batch of that step: NaN in its data, a mask that leaves nothing, labels",
                "a logarithm or a division that met 0", "a variance or a norm of one element"};
  add_precision(curves, out);
  return out;
}

}  // namespace nanhunt::autopsy
