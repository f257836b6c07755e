// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/watch/timeline.h"

namespace nanhunt::analyze {

void Timeline::add(const TimelineStep& step) {
  const bool notable = step.bad_ops > 0 || step.skipped;
  const Entry entry{step, notable, counts_[notable]++};
  ++seen_;
  const bool kept = entry.ordinal % strides_[notable] == 0;
  last_ = entry;
  if (!kept) return;
  entries_.push_back(entry);
  if (entries_.size() >= kMaxSteps) thin();  // one place is left for the last step
}

void Timeline::thin() {
  std::size_t notable = 0;
  for (const Entry& entry : entries_) notable += entry.notable ? 1 : 0;
  // Notable steps may take three quarters before they are thinned too.
  const bool which = notable * 4 > kMaxSteps * 3;
  strides_[which] *= 2;
  std::erase_if(entries_, [&](const Entry& entry) { return entry.ordinal % strides_[entry.notable] != 0; });
}

std::vector<TimelineStep> Timeline::steps() const {
  std::vector<TimelineStep> out;
  out.reserve(entries_.size() + 1);
  for (const Entry& entry : entries_) out.push_back(entry.step);
  const bool there = last_ && !entries_.empty() && entries_.back().notable == last_->notable &&
                     entries_.back().ordinal == last_->ordinal;
  if (last_ && !there) out.push_back(last_->step);
  return out;
}

}  // namespace nanhunt::analyze
