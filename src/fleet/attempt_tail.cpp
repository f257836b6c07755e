// SPDX-License-Identifier: Apache-2.0
#include "src/fleet/attempt_tail.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "src/trace/record_kind.h"

namespace nanhunt::fleet {
namespace {

constexpr std::size_t kOpenSteps = 64;
constexpr std::uint32_t kSinkBits = (1u << (static_cast<unsigned>(TensorRole::kBuffer) + 1)) - 1;

std::optional<double> known(double number) { return std::isnan(number) ? std::nullopt : std::optional(number); }

}  // namespace

AttemptTail::AttemptTail(const std::string& attempt_dir)
    : reader_(attempt_dir, {trace::kSteps.type, trace::kScaler.type, trace::kHealth.type}) {}

void AttemptTail::read(std::uint64_t most_bytes) {
  reader_.read([this](const RecordBatch& batch) { add(batch); }, most_bytes);
}

AttemptTail::Step* AttemptTail::step(std::uint32_t number) {
  if (counted_through_ && number <= *counted_through_) return nullptr;
  return &open_[number];
}

void AttemptTail::add(const RecordBatch& batch) {
  for (const StepRecord& row : batch.steps) {
    Step* const one = step(row.step);
    if (one == nullptr) continue;
    // A step that no optimizer ended has a loss that is not finite where it has none that is known.
    if (row.ending == StepEnding::kOptimizer && !std::isfinite(row.loss)) one->bad = true;
    one->skipped = one->skipped || row.skipped;
    one->at_ns = row.wall_ns;
    one->watch_ns = row.watch_ns;
    if (counted_.last_step && row.step < *counted_.last_step) continue;
    counted_.last_step = row.step;
    counted_.loss = row.ending == StepEnding::kOptimizer ? std::optional(row.loss) : known(row.loss);
    counted_.lr = known(row.lr);
    counted_.scale = known(row.scale);
  }
  for (const ScalerRecord& row : batch.scaler) {
    if (row.action != ScalerAction::kSkip) continue;
    if (Step* const one = step(row.step)) one->skipped = true;
  }
  for (const HealthRecord& row : batch.health) {
    Step* const one = step(row.step);
    if (one == nullptr) continue;
    one->bad = one->bad || (row.bad & kSinkBits) != 0;
    counted_.gradient_norm = known(row.gradient_norm);
  }
  count_old_steps();
}

void AttemptTail::count_old_steps() {
  while (open_.size() > kOpenSteps) {
    const auto& [number, one] = *open_.begin();
    counted_.skipped_steps += one.skipped ? 1 : 0;
    if (one.bad && !one.skipped) {
      ++counted_.bad_steps;
      if (!counted_.first_bad) counted_.first_bad = number;
    }
    counted_through_ = number;
    open_.erase(open_.begin());
  }
}

TailNumbers AttemptTail::numbers() const {
  TailNumbers now = counted_;
  for (const auto& [number, one] : open_) {
    now.skipped_steps += one.skipped ? 1 : 0;
    if (!one.bad || one.skipped) continue;
    ++now.bad_steps;
    if (!now.first_bad) now.first_bad = number;
  }
  const auto timed = [](const auto& entry) { return entry.second.at_ns.has_value(); };
  const auto first = std::find_if(open_.begin(), open_.end(), timed);
  const auto last = std::find_if(open_.rbegin(), open_.rend(), timed);
  if (first == open_.end() || last->first == first->first) return now;
  const double seconds = static_cast<double>(*last->second.at_ns - *first->second.at_ns) / 1e9;
  now.seconds_per_step = seconds / (last->first - first->first);
  std::int64_t watching = 0;
  for (auto one = std::next(first); one != open_.end(); ++one) watching += one->second.watch_ns;
  if (watching > 0 && seconds > 0) now.watching = std::min(static_cast<double>(watching) / 1e9 / seconds, 1.0);
  return now;
}

}  // namespace nanhunt::fleet
