// SPDX-License-Identifier: Apache-2.0
#include "src/autopsy/readers/log_row.h"

#include <algorithm>

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
    const int rank = name.find("global") != std::string_view::npos ? 3 : name.starts_with("_") ? 1 : 2;
    if (rank > step_rank_) {
      step_ = value;
      step_rank_ = rank;
    }
    return;
  }
  if (values_.size() < kMostValues && meaning.quantity)
    values_.push_back({*meaning.quantity, std::string(name), value});
}

void LogRows::set_step(double step) { given_ = step; }

double LogRows::position_of(double step, double epoch) {
  // A step that begins anew with each epoch goes on from the epoch before.
  if (step <= last_step_ && epoch > last_epoch_) offset_ += last_step_ + (step < 1 ? 1 : 0);
  if (is_finite(epoch) && epoch < last_epoch_) offset_ = 0;
  last_step_ = step;
  if (is_finite(epoch)) last_epoch_ = epoch;
  return offset_ + step;
}

bool LogRows::end() {
  const double step = is_finite(step_) ? step_ : given_;
  const bool any = !values_.empty();
  if (any) {
    Unit unit = Unit::kEntry;
    double at = static_cast<double>(entries_);
    if (is_finite(step)) {
      unit = Unit::kStep;
      at = position_of(step, epoch_);
    } else if (is_finite(epoch_)) {
      unit = Unit::kEpoch;
      at = epoch_;
    }
    for (const Value& one : values_) out_->add(one.quantity, one.name, at, unit, one.value);
    ++entries_;
  }
  values_.clear();
  step_ = epoch_ = given_ = kUnknown;
  step_rank_ = 0;
  return any;
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
