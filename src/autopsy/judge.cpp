// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/judge.h"

#include <algorithm>

namespace nanhunt::autopsy {
namespace {

// In the order that decides between guesses of one confidence: what rests on its own evidence first.
constexpr Pattern kPatterns[] = {
    {"hidden_by_filter", "Trainer's filter hides a loss that is not finite", Says::kBad, judge_hidden_by_filter},
    {"scaler_collapsing", "the loss scale collapses: the gradients are bad at any scale", Says::kBad,
     judge_scaler_collapsing},
    {"after_resume", "it began right after a restart", Says::kBad, judge_after_resume},
    {"lr_event", "it began where the learning rate changed", Says::kBad, judge_lr_event},
    {"periodic", "bad only in some steps, and fine between them", Says::kBad, judge_periodic},
    {"eval_only", "the evaluation alone is bad", Says::kBad, judge_eval_only},
    {"exploding", "the run blew up over several steps", Says::kBad, judge_exploding},
    {"gradient_only", "a gradient was bad while the loss was finite", Says::kBad, judge_gradient_only},
    {"first_step", "bad from the start", Says::kBad, judge_first_step},
    {"sudden", "a healthy curve, then a bad number at once", Says::kBad, judge_sudden},
    {"stopped_by_check", "a check of the program ended the run on a bad number", Says::kBad, judge_stopped_by_check},
    {"noted_by_program", "the program itself says that a number was bad", Says::kBad, judge_noted_by_program},
    {"lost_values", "the loss is left empty to the end, where other columns go on", Says::kUnsure, judge_lost_values},
    {"scaler_calibrating", "the loss scaler found its scale", Says::kHarmless, judge_scaler_calibrating},
    {"died_otherwise", "it ended for another reason than a bad number", Says::kHarmless, judge_died_otherwise},
    {"healthy", "no bad number was logged", Says::kHarmless, judge_healthy},
};
constexpr std::size_t kMostGuesses = 3;

// The curve with the first bad number, whichever quantity has it; the loss where both began together.
const Curve* first_bad_curve_of(const Curves& curves) {
  const Curve* first = nullptr;
  for (const Curve* curve : {&curves.loss, &curves.grad_norm, &curves.eval_loss}) {
    if (!curve->bad()) continue;
    const bool earlier = first != nullptr && curves.comparable(*first, *curve) &&
                         curve->point(curve->first_bad).at < first->point(first->first_bad).at;
    if (first == nullptr || earlier) first = curve;
  }
  return first;
}

const Traceback* last_traceback(const Evidence& evidence) {
  const Traceback* last = nullptr;
  for (const Traceback& one : evidence.tracebacks) {
    // A child's exit is what the launcher saw, not what happened.
    if (one.exception.ends_with("ChildFailedError") || one.exception.ends_with("CalledProcessError")) continue;
    if (last == nullptr || !one.exception.empty() || last->exception.empty()) last = &one;
  }
  return last;
}

std::string headline_of(const Judgement& judgement, const Evidence& evidence) {
  switch (judgement.outcome) {
    case Outcome::kNothingToJudge:
      if (!judgement.guesses.empty()) break;
      if (!evidence.nan_line.text.empty())
        return "the logs hold no loss under a name that is known, but a line says: " + evidence.nan_line.text;
      return "the logs hold no loss and no traceback: nothing can be judged";
    case Outcome::kDamaged:
      return "no bad number in what was read; some of it is damaged, or too much";
    case Outcome::kNothingBad:
      return judgement.guesses.empty() ? std::string("no bad number was logged")
                                       : std::string(judgement.guesses[0].title);
    case Outcome::kBadNumbers:
      break;
  }
  if (judgement.guesses.empty()) return "bad numbers were logged; the log does not say why";
  const Guess& first = judgement.guesses[0];
  std::string text = first.confidence == Confidence::kLikely ? "likely: " : "possible: ";
  text += first.title;
  const auto& began = judgement.guesses[0].began;
  if (began.first_bad) text += ": " + position_text(began.unit, *began.first_bad);
  return text;
}

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNothingBad:
      return "nothing_bad";
    case Outcome::kBadNumbers:
      return "bad_numbers";
    case Outcome::kDamaged:
      return "damaged";
    case Outcome::kNothingToJudge:
      return "nothing_to_judge";
  }
  return "";
}

Began began_at(const Curve& curve, std::size_t bad) {
  Began out;
  out.unit = curve.series->unit;
  out.first_bad = curve.point(bad).at;
  for (std::size_t i = bad; i-- > 0;) {
    if (!is_finite(curve.point(i).value)) continue;
    // A restart goes back in steps: what was good later is no bound.
    if (curve.point(i).at <= *out.first_bad) out.last_good = curve.point(i).at;
    break;
  }
  return out;
}

std::string position_text(Unit unit, double at) { return std::string(unit_name(unit)) + " " + number_text(at); }

std::string growth_text(std::string_view what, const Growth& growth) {
  return std::string(what) + " grew from " + number_text(growth.level) + " to " + number_text(growth.highest) + ", " +
         number_text(growth.ratio) + " times as much, with " + std::to_string(growth.rises) + (growth.rises == 1 ? " record high" : " record highs");
}

Judgement judge(const Evidence& evidence) {
  const Curves logged = choose_curves(evidence);
  Curves curves = logged;
  Judgement out;
  const bool calibrated = judge_scaler_calibrating(logged).has_value();
  // Steps that the scaler left out say nothing more.
  if (calibrated) curves.grad_norm.first_bad = kNoPoint;
  out.traceback = last_traceback(evidence);
  if (const Curve* bad = first_bad_curve_of(curves)) {
    out.began = began_at(*bad, bad->first_bad);
    out.source = bad->series->source;
  }
  std::vector<Guess> unsure, harmless;
  for (const Pattern& pattern : kPatterns) {
    auto guess = pattern.judge(pattern.says == Says::kHarmless ? logged : curves);
    if (!guess) continue;
    guess->pattern = pattern.id;
    guess->title = pattern.title;
    auto& guesses = pattern.says == Says::kBad ? out.guesses : pattern.says == Says::kUnsure ? unsure : harmless;
    guesses.push_back(std::move(*guess));
  }
  const auto likely_first = [](const Guess& a, const Guess& b) { return a.confidence < b.confidence; };
  // Training goes on where the whole loss stays finite: why a part of it does not is not as clear.
  if (const Series* whole = curves.loss_that_stayed_finite()) {
    for (Guess& guess : out.guesses) {
      guess.confidence = Confidence::kPossible;
      guess.evidence.push_back(
          {"it is " + curves.loss.series->name + "; " + whole->name + " stayed finite", whole->source});
    }
  }
  // What trains was bad where it was evaluated, before it was bad in training.
  const Curve& eval = curves.eval_loss;
  const bool eval_first = eval.bad() && curves.loss.bad() && curves.comparable(eval, curves.loss) &&
                          eval.point(eval.first_bad).at < curves.loss.point(curves.loss.first_bad).at;
  if (eval_first) {
    for (Guess& guess : out.guesses) {
      guess.confidence = Confidence::kPossible;
      guess.began = began_at(eval, eval.first_bad);
      guess.evidence.push_back({eval.series->name + " was bad before the loss of training, at " +
                                    position_text(eval.series->unit, *guess.began.first_bad),
                                eval.series->source});
    }
  }
  std::stable_sort(out.guesses.begin(), out.guesses.end(), likely_first);
  // What was not read may hold what this looks for.
  const bool damaged = evidence.cut || std::any_of(evidence.sources.begin(), evidence.sources.end(),
                                                   [](const Source& source) { return !source.damage.empty(); });
  if (!out.guesses.empty() || (curves.any_bad() && !calibrated)) {
    out.outcome = Outcome::kBadNumbers;
  } else if (!unsure.empty()) {
    out.outcome = Outcome::kNothingToJudge;
    out.guesses = std::move(unsure);
  } else if (damaged) {
    out.outcome = Outcome::kDamaged;
    out.guesses = std::move(harmless);
    for (Guess& guess : out.guesses) guess.confidence = Confidence::kPossible;
  } else {
    const bool judged =
        curves.loss.there() || curves.eval_loss.there() || curves.grad_norm.there() || !harmless.empty();
    out.outcome = judged ? Outcome::kNothingBad : Outcome::kNothingToJudge;
    out.guesses = std::move(harmless);
  }
  if (!out.guesses.empty() && !out.guesses[0].evidence.empty()) out.source = out.guesses[0].evidence[0].source;
  if (out.guesses.size() > kMostGuesses) out.guesses.resize(kMostGuesses);
  out.headline = headline_of(out, evidence);
  return out;
}

}  // namespace nanhunt::autopsy
