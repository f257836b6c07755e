// SPDX-License-Identifier: Apache-2.0
// Magnitudes of a finding's tensors by binade, to be held against what number formats can keep.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

struct FormatRange {
  std::string name;
  // Binades: the smallest subnormal is 2^least, the smallest normal 2^normal, the largest finite number below 2^beyond.
  int least = 0, normal = 0, beyond = 0;
};

struct MagnitudeRow {
  std::string label, dtype;
  int least = 0;                   // binade of bins[0]; for a span: of the smallest magnitude
  std::vector<std::int64_t> bins;  // without a histogram: empty, and the span is all that is known
  int beyond = 0;                  // one past the last binade
  std::string zeros, nonfinite;    // counts, "" for none
};

struct MagnitudeView {
  std::vector<MagnitudeRow> rows;  // at most kMaxMagnitudes, the output last
  std::vector<FormatRange> formats;
  int from = 0, to = 0;  // binades shown
  bool empty() const { return rows.empty(); }
};

inline constexpr std::size_t kMaxMagnitudes = 4;

MagnitudeView view_magnitudes(const Finding& finding);

}  // namespace nanhunt::reports
