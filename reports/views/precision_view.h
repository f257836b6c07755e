// SPDX-License-Identifier: Apache-2.0
// fp32 against recipes of mixed precision, in words: text and page are drawn from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nanhunt/precision.h"
#include "reports/views/timeline_view.h"

namespace nanhunt::reports {

// A table as people read it: the first cell of a row is its name.
struct TableView {
  std::string caption;
  std::vector<std::string> heads;
  std::vector<bool> numeric;  // by column
  struct Row {
    std::vector<std::string> cells;
    bool bad = false;
    std::string link = {};  // where its name leads; a path of this program's making, or none
  };
  std::vector<Row> rows;
  std::uint64_t omitted = 0;  // rows
};

struct PrecisionAnswer {
  std::string recipe, word, sentence;
  PrecisionOutcome outcome = PrecisionOutcome::kSame;
};

struct PrecisionCurve {
  std::string recipe;
  TimelineView timeline;
};

struct PrecisionView {
  bool good = false;  // every recipe is kSame
  std::string word, headline, run_line;
  std::vector<PrecisionAnswer> answers;  // of each recipe but fp32
  TableView results, cost, layers, trials, sweep;
  std::vector<PrecisionCurve> curves;  // fp32 first
  std::string time_note, memory_note, layers_note, tolerance_note;
};

inline constexpr std::size_t kPrecisionLayers = 100;  // of a recipe, on the page
// The first `layers` of each recipe.
PrecisionView view_precision(const PrecisionComparison& comparison, std::size_t layers = kPrecisionLayers);

}  // namespace nanhunt::reports
