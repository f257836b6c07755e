// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/graph/birth.h"

#include <algorithm>

#include "src/analyze/graph/swallow.h"

namespace nanhunt::analyze {

Birth::Birth() = default;
Birth::~Birth() = default;

void StepSet::merge(Run run) {
  // Nearly always at the end: steps come in order.
  auto it = runs_.end();
  while (it != runs_.begin() && run.first <= std::prev(it)->first) --it;
  if (it != runs_.begin() && run.first <= std::uint64_t{std::prev(it)->last} + 1) {
    --it;
    it->last = std::max(it->last, run.last);
  } else if (runs_.size() < kMaxRuns) {
    it = runs_.insert(it, run);
  } else if (it != runs_.begin()) {
    --it;
    it->last = std::max(it->last, run.last);
  } else {
    it->first = run.first;
    it->last = std::max(it->last, run.last);
  }
  while (std::next(it) != runs_.end() && std::next(it)->first <= std::uint64_t{it->last} + 1) {
    it->last = std::max(it->last, std::next(it)->last);
    runs_.erase(std::next(it));
  }
}

StepSet StepSet::fill(std::uint32_t first, std::uint32_t last) {
  StepSet missing;
  std::uint64_t next = first;
  for (const Run& run : runs_) {
    if (run.last < next) continue;
    if (run.first > last) break;
    if (run.first > next) missing.merge({static_cast<std::uint32_t>(next), run.first - 1});
    next = std::uint64_t{run.last} + 1;
  }
  if (next <= last) missing.merge({static_cast<std::uint32_t>(next), last});
  add(missing);
  return missing;
}

std::uint64_t StepSet::count_in(const StepSet& other) const {
  std::uint64_t n = 0;
  for (auto a = runs_.begin(), b = other.runs_.begin(); a != runs_.end() && b != other.runs_.end();) {
    const std::uint32_t first = std::max(a->first, b->first), last = std::min(a->last, b->last);
    if (first <= last) n += std::uint64_t{last} - first + 1;
    ++(a->last < b->last ? a : b);
  }
  return n;
}

std::uint64_t StepSet::count_between(std::uint32_t first, std::uint32_t last) const {
  StepSet range;
  range.merge({first, last});
  return count_in(range);
}

}  // namespace nanhunt::analyze
