// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/training_trend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

Finding warning(FindingClass cls, Phase phase, std::uint32_t from, std::uint32_t to, std::uint64_t count) {
  Finding f;
  f.cls = cls;
  f.severity = Severity::kWarning;
  f.confidence = Confidence::kObserved;
  f.place.phase = phase;
  f.place.step = f.first_step = from;
  f.last_step = to;
  f.occurrence_count = count;
  return f;
}

}  // namespace

void TrainingTrend::on_step_end(std::uint32_t step, double loss, double gradient, double lr) {
  if (!std::isfinite(loss)) {  // told by itself, and what comes after it is another training
    steps_ = climbs_ = dead_ = 0;
    first_ = last_ = {};
    lowest_lr_ = 0;
    return;
  }
  if (steps_ == 0) first_loss_ = loss;
  if (steps_ < kComparedSteps) first_[steps_] = std::fabs(loss);
  last_[steps_ % kComparedSteps] = std::fabs(loss);
  ++steps_;
  last_step_ = step;
  last_loss_ = loss;
  if (lr < 0) {
    if (climbs_++ == 0) climbs_from_ = step;
    climbs_to_ = step;
    lowest_lr_ = std::min(lowest_lr_, lr);
  }
  if (gradient == 0 && loss != 0) {
    if (dead_++ == 0) dead_from_ = step;
  } else {
    dead_ = 0;
  }
}

void TrainingTrend::on_norm(const NormRecord& record) {
  if (record.kind != TensorRole::kBoundaryGradient || (moved_.size() >= kMaxParameters && !moved_.contains(record.path))) return;
  norm_steps_.insert(record.step);
  if (norm_steps_.size() > kUnmovedSteps) norm_steps_.erase(norm_steps_.begin());
  std::uint32_t& moved = moved_[record.path];
  if (record.norm != 0) moved = std::max(moved, record.step + 1);
}

double TrainingTrend::first_largest() const { return *std::max_element(first_.begin(), first_.end()); }
double TrainingTrend::last_smallest() const { return *std::min_element(last_.begin(), last_.end()); }

std::vector<Finding> TrainingTrend::findings() const {
  std::vector<Finding> found;
  if (climbs_ > 0) {
    found.push_back(climbing());
  } else if (steps_ >= 2 * kComparedSteps && first_largest() > 0 && last_smallest() >= kRunGrowth * first_largest()) {
    found.push_back(growing());
  }
  if (dead_ >= kUnmovedSteps && static_cast<double>(dead_) >= kUnmovedShare * static_cast<double>(steps_)) {
    found.push_back(dead());
  } else if (auto most = mostly_dead()) {
    found.push_back(std::move(*most));
  }
  return found;
}

Finding TrainingTrend::climbing() const {
  Finding f = warning(FindingClass::kExploding, Phase::kOptimizer, climbs_from_, climbs_to_, climbs_);
  f.cause = "a learning rate below 0";
  f.title = fmt::format("The learning rate is below 0 from step {} on", climbs_from_);
  f.explanation = fmt::format(
      "It was {} at the lowest. With a negative rate each update goes up the gradient, so that the loss grows: it was {} at first and "
      "{} in step {}. No number is bad.",
      number(lowest_lr_), number(first_loss_), number(last_loss_), last_step_);
  f.advice = {make_advice("mend-schedule")};
  return f;
}

Finding TrainingTrend::growing() const {
  Finding f = warning(FindingClass::kExploding, Phase::kLoss, last_step_, last_step_, 1);
  f.title = fmt::format("Training diverges: the loss has grown from {} to {}", number(first_loss_), number(last_loss_));
  f.explanation = fmt::format(
      "In the first {} steps it was {} at most, in the last {} at least {}. No number is bad yet: the "
      "updates do not make the loss smaller.",
      kComparedSteps, number(first_largest()), kComparedSteps, number(last_smallest()));
  f.advice = {make_advice("lower-lr"), make_advice("check-update"), make_advice("clip-gradients")};
  return f;
}

Finding TrainingTrend::dead() const {
  Finding f = warning(FindingClass::kUpdateLoss, Phase::kBackward, dead_from_, last_step_, dead_);
  f.title = fmt::format("Training stands still: every gradient is exactly 0, in {}", count_of(static_cast<std::int64_t>(dead_), "step"));
  f.explanation = fmt::format(
      "From step {} to step {} backward gave no parameter anything else than 0, though the loss is not 0 ({}). Something between "
      "the loss and all parameters has no slope: what is rounded, compared or detached, or a unit that saturates or is dead for "
      "all that it is given.",
      dead_from_, last_step_, number(last_loss_));
  f.advice = {make_advice("let-gradients-through"), make_advice("lower-lr")};
  return f;
}

std::optional<Finding> TrainingTrend::mostly_dead() const {
  const bool of_the_end = norm_steps_.size() >= kUnmovedSteps && *norm_steps_.rbegin() + std::uint64_t{1} >= last_step_;
  if (!of_the_end || last_loss_ == 0) return std::nullopt;
  std::vector<std::string> still;
  for (const auto& [path, moved] : moved_)
    if (moved <= *norm_steps_.begin()) still.push_back(names_.text(path));
  if (static_cast<double>(still.size()) < kUnmovedParameters * static_cast<double>(moved_.size())) return std::nullopt;
  const auto of_all = fmt::format("{} of {}", still.size(), moved_.size());
  Finding f = warning(FindingClass::kUpdateLoss, Phase::kBackward, *norm_steps_.begin(), last_step_, norm_steps_.size());
  f.title = fmt::format("The gradients of {} parameters are exactly 0, in the last {} steps", of_all, norm_steps_.size());
  f.explanation = fmt::format(
      "Backward gave them nothing else than 0, though the loss is not 0 ({}): {}. Something between the loss and these parameters "
      "has no slope: units that are dead or saturated for all that they are given, what is rounded, compared or detached.",
      number(last_loss_), join(still, 4, " and "));
  f.advice = {make_advice("let-gradients-through"), make_advice("lower-lr")};
  return f;
}

}  // namespace nanhunt::analyze
