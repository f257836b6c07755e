// SPDX-License-Identifier: Apache-2.0
// The steps of a run, thinned to what a report can show. Bad and skipped steps are kept longest.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::analyze {

class Timeline {
 public:
  static constexpr std::size_t kMaxSteps = 4096;

  void add(const TimelineStep& step);
  std::uint64_t seen() const { return seen_; }
  // In order; always holds the first and the last step.
  std::vector<TimelineStep> steps() const;

 private:
  struct Entry {
    TimelineStep step;
    bool notable = false;       // bad or skipped
    std::uint64_t ordinal = 0;  // among its kind
  };
  void thin();

  std::vector<Entry> entries_;
  std::optional<Entry> last_;  // not yet in entries_, or thinned out of them
  std::uint64_t seen_ = 0;
  std::uint64_t counts_[2] = {0, 0};   // plain, notable
  std::uint64_t strides_[2] = {1, 1};  // every n-th of each kind is kept
};

}  // namespace nanhunt::analyze
