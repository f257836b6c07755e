// SPDX-License-Identifier: Apache-2.0
// How the run ended where no curve says it: stopped_by_check, noted_by_program, lost_values,
// died_otherwise, healthy.
#include "src/autopsy/judge.h"
#include "src/autopsy/limits.h"

namespace nanhunt::autopsy {
namespace {

std::string traceback_text(const Traceback& one) {
  std::string text = one.exception;
  if (!one.exception.empty() && !one.message.empty()) text += ": ";
  text += one.message.substr(0, 160);
  if (!one.file.empty()) text += " (" + one.file + ":" + std::to_string(one.line) + ")";
  return text;
}

}  // namespace

std::optional<Guess> judge_stopped_by_check(const Curves& curves) {
  for (const Traceback& one : curves.evidence->tracebacks) {
    if (one.ended != Ended::kByBadNumber || !one.backward.empty()) continue;
    Guess out;
    if (curves.loss.size() != 0) {
      const Point& last = curves.loss.point(curves.loss.size() - 1);
      out.began.unit = curves.loss.series->unit;
      if (is_finite(last.value)) out.began.last_good = last.at;
    }
    out.evidence.push_back({traceback_text(one), one.source});
    out.checks = {
        "the first operation that made the bad number: the place that noticed it is hardly ever the place where it "
        "began"};
    return out;
  }
  return std::nullopt;
}

// What the program itself says of bad numbers, where no curve shows one.
std::optional<Guess> judge_noted_by_program(const Curves& curves) {
  if (curves.any_bad()) return std::nullopt;
  for (const Traceback& one : curves.evidence->tracebacks) {
    if (one.ended != Ended::kOtherwise) return std::nullopt;
  }
  Guess out;
  out.checks = {"the first operation that makes the bad number: a step that is left out hides it from the loss"};
  const Statement& says = curves.evidence->said_bad;
  if (!says.text.empty()) {
    out.began.last_good = curves.position_before(says.source, says.entries_before);
    if (out.began.last_good) out.began.unit = curves.loss.series->unit;
    out.evidence.push_back({"the log says: " + says.text, says.source});
    return out;
  }
  for (const Series& series : curves.evidence->series) {
    if (series.quantity != Quantity::kNanSteps) continue;
    for (const Point& point : series.points) {
      if (!(point.value > 0)) continue;
      out.began.unit = series.unit;
      out.began.first_bad = point.at;
      out.evidence.push_back(
          {series.name + " was " + number_text(point.value) + " at " + position_text(series.unit, point.at),
           series.source});
      return out;
    }
  }
  return std::nullopt;
}

std::optional<Guess> judge_died_otherwise(const Curves& curves) {
  if (curves.any_bad()) return std::nullopt;
  for (const Traceback& one : curves.evidence->tracebacks) {
    if (one.ended != Ended::kOtherwise) return std::nullopt;
  }
  if (curves.evidence->tracebacks.empty()) return std::nullopt;
  const Traceback& last = curves.evidence->tracebacks.back();
  Guess out;
  out.confidence = last.exception.empty() ? Confidence::kPossible : Confidence::kLikely;
  out.evidence.push_back({traceback_text(last), last.source});
  if (curves.loss.there()) {
    out.evidence.push_back(
        {"all " + std::to_string(curves.loss.size()) + " losses are finite", curves.loss.series->source});
    out.unlikely = {"a bad number: none was logged"};
  }
  out.checks = {"the exception: nothing here speaks of numbers"};
  return out;
}

std::optional<Guess> judge_lost_values(const Curves& curves) {
  if (!curves.loss.there() || curves.any_bad()) return std::nullopt;
  const auto lost = [](const Series& one) {
    return one.last_gap.before == one.points.size() && one.last_gap.rows >= limits::kLostRows &&
           one.last_gap.rows > limits::kLostTimes * one.longest_gap.rows;
  };
  const Series& loss = *curves.loss.series;
  if (!lost(loss)) return std::nullopt;
  // A loss of another phase of the run may go on in its place.
  for (const Series& other : curves.evidence->series) {
    if (other.quantity == Quantity::kLoss && other.source == loss.source && !lost(other)) return std::nullopt;
  }
  Guess out;
  out.began = {loss.unit, loss.points.back().at, loss.last_gap.at};
  out.evidence.push_back({"the last " + std::to_string(loss.last_gap.rows) + " rows have no " + loss.name + ", after " +
                              std::to_string(loss.points.size()) + " that are finite",
                          loss.source});
  out.checks = {"what wrote the log: JSON has no NaN, and many writers put null or nothing in its place"};
  return out;
}

std::optional<Guess> judge_healthy(const Curves& curves) {
  if (curves.any_bad() || !curves.loss.there() || !curves.evidence->tracebacks.empty()) return std::nullopt;
  Guess out;
  out.confidence = Confidence::kLikely;
  const Point& last = curves.loss.point(curves.loss.size() - 1);
  out.evidence.push_back({"all " + std::to_string(curves.loss.size()) + " losses are finite, the last " +
                              number_text(last.value) + " at " + position_text(curves.loss.series->unit, last.at),
                          curves.loss.series->source});
  // A loss that grew without an end is not healthy, though it never became NaN.
  const double first = curves.loss.point(0).value, now = last.value;
  if (curves.loss.size() > 1 && first > 0 && now > limits::kGrownBy * first) {
    out.confidence = Confidence::kPossible;
    out.evidence.push_back(
        {"it grew from " + number_text(curves.loss.point(0).value) + ": training diverged without a bad number",
         curves.loss.series->source});
    out.checks = {"the learning rate and its warm-up"};
  }
  // A number under another name may be what matters, and may not.
  const Statement& line = curves.evidence->nan_line;
  if (!line.text.empty()) {
    out.confidence = Confidence::kPossible;
    out.evidence.push_back({"a line holds a bad number that is not judged: " + line.text, line.source});
    out.checks.emplace_back("whether that number goes into training");
  }
  return out;
}

}  // namespace nanhunt::autopsy
