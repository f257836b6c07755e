// SPDX-License-Identifier: Apache-2.0
// Gradients that were bad while the loss was, or seemed, finite: gradient_only, hidden_by_filter.
#include <algorithm>

#include "src/autopsy/judge.h"
#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

const Traceback* backward_traceback(const Evidence& evidence) {
  for (const Traceback& one : evidence.tracebacks) {
    if (!one.backward.empty()) return &one;
  }
  return nullptr;
}

// Zeros at the end of the loss, or up to its first bad number.
std::size_t first_frozen(const Curve& loss) {
  std::size_t first = loss.size();
  while (first > 0 && loss.point(first - 1).value == 0) --first;
  return first;
}

}  // namespace

std::optional<Guess> judge_gradient_only(const Curves& curves) {
  Guess out;
  const Traceback* named = backward_traceback(*curves.evidence);
  const bool before = curves.gradient_first() && (curves.loss.size() != 0 || curves.loss.bad());
  if (!before && named == nullptr) return std::nullopt;
  if (before) {
    const Curve& norm = curves.grad_norm;
    out.began = began_at(norm, norm.first_bad);
    const double at = *out.began.first_bad, value = norm.point(norm.first_bad).value;
    const bool same = curves.comparable(curves.loss, norm);
    const std::size_t logged = same ? curves.loss.last_at(at) : kNoPoint;
    // A loss of exactly 0 may stand for one that was not finite: hidden_by_filter.
    const bool beside = logged != kNoPoint && curves.loss.point(logged).at == at &&
                        is_finite(curves.loss.point(logged).value) && curves.loss.point(logged).value != 0;
    const Growth growth = norm.growth_before(norm.first_bad);
    const bool hidden = judge_hidden_by_filter(curves).has_value();  // the loss only seems finite
    const bool sure = beside && !hidden && growth.ratio < limits::kExplodes;
    out.confidence = sure ? Confidence::kLikely : Confidence::kPossible;
    out.evidence.push_back(
        {norm.series->name + " was " + number_text(value) + " at " + position_text(norm.series->unit, at),
         norm.series->source});
    if (beside) {
      out.evidence.push_back({"the loss of that " + std::string(unit_name(norm.series->unit)) + " was " +
                                  number_text(curves.loss.point(logged).value),
                              curves.loss.series->source});
    }
    if (curves.loss.bad()) {
      out.evidence.push_back({"the loss followed at " +
                                  position_text(curves.loss.series->unit, curves.loss.point(curves.loss.first_bad).at),
                              curves.loss.series->source});
    }
    if (sure) out.unlikely = {"a forward pass that made NaN in that step: its loss was finite"};
  }
  if (named != nullptr) {
    std::string text = "anomaly mode names " + named->backward;
    if (!named->file.empty()) text += ", of " + named->file + ":" + std::to_string(named->line);
    out.evidence.push_back({text, named->source});
  }
  out.checks = {"operations whose derivative is not finite: sqrt(0), norm(0), a branch of where() that was not taken"};
  out.checks.emplace_back(curves.has_fp16() ? "gradients that overflow in fp16 (the settings say that it is fp16)"
                                            : "gradients that overflow, if it was fp16");
  return out;
}

std::optional<Guess> judge_hidden_by_filter(const Curves& curves) {
  const Curve& loss = curves.loss;
  if (!loss.there() || loss.bad()) return std::nullopt;
  const std::size_t first = first_frozen(loss);
  const std::size_t zeros = loss.size() - first;
  if (zeros < 2) return std::nullopt;
  std::vector<double> bad_norms;
  for (std::size_t j = 0; j < curves.grad_norm.size() && curves.comparable(loss, curves.grad_norm); ++j) {
    if (!is_finite(curves.grad_norm.point(j).value)) bad_norms.push_back(curves.grad_norm.point(j).at);
  }
  std::sort(bad_norms.begin(), bad_norms.end());
  std::size_t with_bad_norm = 0;
  for (std::size_t i = first; i < loss.size(); ++i) {
    with_bad_norm += std::binary_search(bad_norms.begin(), bad_norms.end(), loss.point(i).at) ? 1u : 0u;
  }
  // Without a gradient norm a loss of exactly 0 may also be a model that fits everything.
  const bool dropped = !is_part_of_loss(loss.series->name) && first > 0 && loss.point(first - 1).value > 0.01 &&
                       zeros >= limits::kFrozen && !curves.grad_norm.there();
  if (with_bad_norm == 0 && !dropped) return std::nullopt;
  Guess out;
  out.confidence = with_bad_norm > 1 ? Confidence::kLikely : Confidence::kPossible;
  out.began = began_at(loss, first);
  if (with_bad_norm != 0 && curves.grad_norm.point(curves.grad_norm.first_bad).at <= *out.began.first_bad) {
    out.began = began_at(curves.grad_norm, curves.grad_norm.first_bad);
  }
  out.evidence.push_back({"the loss is exactly 0 in the last " + std::to_string(zeros) + " entries, from " +
                              position_text(loss.series->unit, loss.point(first).at) + " on",
                          loss.series->source});
  if (with_bad_norm != 0) {
    const Point& bad = curves.grad_norm.point(curves.grad_norm.first_bad);
    out.evidence.push_back({curves.grad_norm.series->name + " is " + number_text(bad.value) + " from " +
                                position_text(curves.grad_norm.series->unit, bad.at) + " on",
                            curves.grad_norm.series->source});
  }
  out.unlikely = {"a loss that really is 0: Trainer replaces NaN and Inf by the mean of what it logged since"};
  if (with_bad_norm == 0) out.unlikely.clear();
  out.checks = {"logging_nan_inf_filter=False shows the losses as they were",
                "the forward pass of the first of these steps"};
  return out;
}

}  // namespace nanhunt::autopsy
