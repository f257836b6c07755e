// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/log_row.h"

#include <algorithm>
#include <cmath>

namespace nanhunt::autopsy {
namespace {

constexpr std::size_t kMostValues = 512;  // of one row
constexpr std::size_t kMostNames = 4096;
constexpr std::size_t kLongestKept = 200;

}  // namespace

LogRows::Meaning LogRows::meaning_of(std::string_view name) {
  if (name.size() > kLongestKept) return {unit_of(name), quantity_of(name)};
  const auto known = meanings_.find(std::string(name));
  if (known != meanings_.end()) return known->second;
  const Meaning meaning{unit_of(name), quantity_of(name)};
  if (meanings_.size() < kMostNames) meanings_.emplace(name, meaning);
  return meaning;
}

void LogRows::add(std::string_view name, double value) {
  const Meaning meaning = meaning_of(name);
  if (meaning.unit) {
    if (*meaning.unit == Unit::kEpoch) {
      epoch_ = value;
      return;
    }
    // W&B's "_step" counts calls of log(); a step that the program logs itself is its own.
    const int priority = name.find("global") != std::string_view::npos ? 3 : name.starts_with("_") ? 1 : 2;
    if (priority > step_priority_) {
      step_ = value;
      step_priority_ = priority;
    }
    return;
  }
  if (values_.size() < kMostValues && meaning.quantity)
    values_.push_back({*meaning.quantity, std::string(name), value});
}

void LogRows::add_missing(std::string_view name) {
  if (missing_.size() < kMostValues && meaning_of(name).quantity == Quantity::kLoss) missing_.emplace_back(name);
}

void LogRows::set_step(double step) { given_ = step; }
void LogRows::set_evaluation() { evaluation_ = true; }
void LogRows::set_progress(const Progress& progress) { progress_ = progress; }

double LogRows::position_of(double step, double epoch, bool trains) {
  // A step that begins anew with each epoch goes on from the epoch before. One that is the same may be that of a row of
  // evaluation, which stands at the step that comes.
  const bool anew = step < last_step_ || (step == last_step_ && trains && last_trains_);
  last_trains_ = trains;
  if (anew && epoch > last_epoch_) offset_ += last_step_ + (step < 1 ? 1 : 0);
  if (is_finite(epoch) && epoch < last_epoch_) offset_ = 0;
  last_step_ = step;
  if (is_finite(epoch)) last_epoch_ = epoch;
  return offset_ + step;
}

double LogRows::position_of(const Progress& progress, double epoch) {
  if (!is_finite(first_epoch_) && last_trains_) {
    first_epoch_ = std::min(epoch, 1.0);
    epoch_length_ = progress.of;
  }
  // A loop over other batches, as an evaluation's, stands where training stands.
  if (last_trains_ && progress.of == epoch_length_)
    last_position_ = (epoch - first_epoch_) * epoch_length_ + progress.at;
  return last_position_;
}

void LogRows::hand_over(bool trains) {
  const double step = is_finite(step_) ? step_ : given_;
  if (is_finite(epoch_)) named_epoch_ = epoch_;
  Unit unit = Unit::kEntry;
  double at = static_cast<double>(entries_);
  if (is_finite(step)) {
    unit = Unit::kStep;
    at = position_of(step, epoch_, trains);
  } else if (const double epoch = progress_ ? progress_->epoch.value_or(named_epoch_) : kUnknown;
             is_finite(epoch) && epoch == std::floor(epoch)) {
    unit = Unit::kStep;
    last_trains_ = trains;
    at = position_of(*progress_, epoch);
  } else if (is_finite(epoch_)) {
    unit = Unit::kEpoch;
    at = epoch_;
  }
  for (const Value& one : values_) {
    const bool evaluation = evaluation_ && one.quantity == Quantity::kLoss;
    const std::string name = rank_.empty() ? one.name : one.name + " [rank " + rank_ + "]";
    if (!one.is_filler) out_->add(evaluation ? Quantity::kEvalLoss : one.quantity, name, at, unit, one.value);
  }
  for (const std::string& name : missing_) out_->add_missing(name, at, unit);
  ++entries_;
}

bool LogRows::end() {
  bool training = false, evaluation = false, trains = false;
  for (const Value& one : values_) {
    const bool of_training = one.quantity == Quantity::kLoss || one.quantity == Quantity::kGradNorm;
    trains |= of_training && !evaluation_;
    if (!is_finite(one.value)) continue;
    training |= of_training;
    evaluation |= one.quantity == Quantity::kEvalLoss;
  }
  ++rows_;
  kinds_.both |= training && evaluation;
  if (training) kinds_.rows_with_training = rows_;
  for (Value& one : values_) {
    if (!std::isnan(one.value)) continue;
    const bool of_evaluation = one.quantity == Quantity::kEvalLoss;
    if (of_evaluation && training) kinds_.training_alone = true;
    if (one.quantity == Quantity::kLoss && evaluation) kinds_.evaluation_alone = true;
    // Of a row with neither it is the evaluation that was bad, where training goes on well.
    const bool goes_on = rows_ < known_kinds_.rows_with_training;
    one.is_filler = known_kinds_.parted() && (of_evaluation ? training : evaluation || goes_on);
  }
  const bool any = !values_.empty();
  if (any && out_ != nullptr) hand_over(trains);
  if (!any && is_finite(epoch_)) named_epoch_ = epoch_;  // "Epoch 3/10" on a line of its own
  values_.clear();
  missing_.clear();
  progress_.reset();
  evaluation_ = false;
  step_ = epoch_ = given_ = kUnknown;
  step_priority_ = 0;
  return any;
}

void read_table(EvidenceBuilder& out, const std::function<void(LogRows&)>& read) {
  LogRows survey;
  read(survey);
  LogRows rows(out, survey.kinds());
  read(rows);
}

bool next_line(std::string_view& text, std::string_view& line) {
  if (text.empty()) return false;
  const std::size_t end = std::min(text.find_first_of("\n\r"), text.size());
  line = text.substr(0, std::min<std::size_t>(end, 1u << 20));
  text.remove_prefix(std::min(end + 1, text.size()));
  return true;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace nanhunt::autopsy
