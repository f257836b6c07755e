// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/rules/run/training_trend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/analyze/wording/advice.h"
#include "src/analyze/wording/text.h"

namespace nanhunt::analyze {
namespace {

constexpr std::string_view kNoDerivative =
    "Something between the loss and these parameters has derivative 0: rounding, a comparison, detach(), or units that are saturated "
    "or dead.";

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
    steps_ = negative_lr_steps_ = zero_steps_ = 0;
    calm_loss_ = lowest_lr_ = 0;
    return;
  }
  if (steps_ == 0) first_loss_ = loss;
  if (steps_ < kCalmSteps) calm_loss_ = std::max(calm_loss_, std::fabs(loss));
  if (loss <= calm_loss_) calm_until_ = step;
  last_[steps_ % last_.size()] = loss;
  ++steps_;
  last_step_ = step;
  last_loss_ = loss;
  if (lr < 0) {
    if (negative_lr_steps_++ == 0) negative_lr_from_ = step;
    negative_lr_to_ = step;
    lowest_lr_ = std::min(lowest_lr_, lr);
  }
  if (gradient == 0 && loss != 0) {
    if (zero_steps_++ == 0) zero_from_ = step;
  } else {
    zero_steps_ = 0;
  }
}

void TrainingTrend::on_norm(const NormRecord& record) {
  const bool known = last_norms_.contains(record.path);
  if (record.kind != TensorRole::kBoundaryGradient || (!known && last_norms_.size() >= kMaxParameters)) return;
  norm_steps_.insert(record.step);
  if (norm_steps_.size() > kZeroSteps) norm_steps_.erase(norm_steps_.begin());
  LastNorms& last = last_norms_[record.path];
  last.seen = std::max(last.seen, record.step + 1);
  if (record.norm != 0) last.nonzero = std::max(last.nonzero, record.step + 1);
}

// A loss that is large by now may have come to rest there, as with larger rewards; one that still grows has not.
bool TrainingTrend::grows() const {
  if (steps_ < 2 * last_.size() || calm_loss_ == 0) return false;
  double before = 0, after = 0, smallest = last_loss_;
  for (std::size_t i = 0; i < last_.size(); ++i) {
    const double loss = last_[(steps_ + i) % last_.size()];  // oldest first
    (i < kCalmSteps ? before : after) += loss;
    if (i >= kCalmSteps) smallest = std::min(smallest, loss);
  }
  return smallest >= kRunGrowth * calm_loss_ && after >= kStillGrows * before;
}

std::vector<Finding> TrainingTrend::findings() const {
  std::vector<Finding> found;
  if (negative_lr_steps_ > 0) {
    found.push_back(negative_lr());
  } else if (grows()) {
    found.push_back(growing());
  }
  const bool is_learnt = std::fabs(last_loss_) < kLearnt * std::fabs(first_loss_);  // every margin may be met
  if (!is_learnt && zero_steps_ >= kZeroSteps && static_cast<double>(zero_steps_) >= kZeroShare * static_cast<double>(steps_)) {
    found.push_back(all_zero());
  } else if (auto most = mostly_zero()) {
    found.push_back(std::move(*most));
  }
  return found;
}

Finding TrainingTrend::negative_lr() const {
  Finding f = warning(FindingClass::kExploding, Phase::kOptimizer, negative_lr_from_, negative_lr_to_, negative_lr_steps_);
  f.cause = "a learning rate below 0";
  f.title = fmt::format("The learning rate is below 0 in {}, first in step {}",
                        count_of(static_cast<std::int64_t>(negative_lr_steps_), "step"), negative_lr_from_);
  f.explanation = fmt::format(
      "The lowest rate was {}. With a negative rate an update goes up the gradient. The loss was {} at first and {} in step {}; no number is "
      "bad.",
      number(lowest_lr_), number(first_loss_), number(last_loss_), last_step_);
  f.advice = {make_advice("mend-schedule")};
  if (last_loss_ <= first_loss_) f.severity = Severity::kInfo;
  return f;
}

Finding TrainingTrend::growing() const {
  Finding f = warning(FindingClass::kExploding, Phase::kLoss, calm_until_ + 1, last_step_, last_step_ - calm_until_);
  f.title = fmt::format("Training diverges: the loss has grown from {} to {}", number(first_loss_), number(last_loss_));
  f.explanation = fmt::format(
      "In the first {} steps the loss was {} at most, and at the end it still grows. No number is bad yet: the updates do not make "
      "the loss smaller.",
      kCalmSteps, number(calm_loss_));
  f.advice = {make_advice("lower-lr"), make_advice("check-update"), make_advice("clip-gradients")};
  return f;
}

Finding TrainingTrend::all_zero() const {
  Finding f = warning(FindingClass::kUpdateLoss, Phase::kBackward, zero_from_, last_step_, zero_steps_);
  f.title = fmt::format("Training stands still: every gradient is exactly 0, in the last {}",
                        count_of(static_cast<std::int64_t>(zero_steps_), "step"));
  f.explanation = fmt::format("From step {} to step {} backward gave no parameter anything else than 0, though the loss is not 0 ({}). {}",
                              zero_from_, last_step_, number(last_loss_), kNoDerivative);
  f.advice = {make_advice("let-gradients-through")};
  return f;
}

std::optional<Finding> TrainingTrend::mostly_zero() const {
  const bool of_the_end = norm_steps_.size() >= kZeroSteps && *norm_steps_.rbegin() + std::uint64_t{1} >= last_step_;
  if (!of_the_end || last_loss_ == 0) return std::nullopt;
  std::vector<std::string> zero;
  std::size_t all = 0;
  for (const auto& [path, last] : last_norms_) {
    if (last.seen <= *norm_steps_.begin()) continue;
    ++all;
    if (last.nonzero <= *norm_steps_.begin()) zero.push_back(names_.text(path));
  }
  if (static_cast<double>(zero.size()) < kZeroParameters * static_cast<double>(all)) return std::nullopt;
  Finding f = warning(FindingClass::kUpdateLoss, Phase::kBackward, *norm_steps_.begin(), last_step_, norm_steps_.size());
  f.title = fmt::format("The gradients of {} of {} parameters are exactly 0, in the last {} steps", zero.size(), all, norm_steps_.size());
  f.severity = Severity::kInfo;  // a part that is not used has none either
  f.explanation = fmt::format("Backward gave them nothing else than 0, though the loss is not 0 ({}): {}. {}", number(last_loss_),
                              join(zero, 4, " and "), kNoDerivative);
  f.advice = {make_advice("let-gradients-through")};
  return f;
}

}  // namespace nanhunt::analyze
