// SPDX-License-Identifier: Apache-2.0
// update_loss of what no optimizer trains: a counter, a buffer or a moment in 16 bits that is added to and stays as it
// is, and weights that something is merged into between steps, most of which is rounded away. No number is ever bad.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kStandsStill = 0.8;              // share of a buffer's updates that change nothing
inline constexpr std::uint32_t kStandsStillSteps = 5;    // measured steps in a row of a buffer past it
inline constexpr double kMergeLost = 0.5;                // share of what is merged into weights that changes nothing
inline constexpr double kFewestMerged = 16;              // elements that a merge is to change

class Standstill {
 public:
  explicit Standstill(Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void on_step_end();
  std::vector<Finding> findings() const;

 private:
  enum class Kind : std::uint8_t { kCounter, kBuffer, kMerge };
  struct Row {
    Kind kind;
    OpRef at;  // where it stood still first, as far as was recorded
    StringId call_site = 0;
    ArgSnapshot output;
    std::vector<ArgSnapshot> inputs;
    double updates = 0, lost = 0;
    double added = 0;             // of a counter
    std::uint32_t steps = 0;      // in which it stood still
    std::uint32_t run = 0, longest_run = 0;
    std::uint32_t last_step = 0;
    bool is_still_now = false, moves_now = false;  // in the step that runs
  };
  static constexpr std::size_t kMaxRows = 256;

  void note(Kind kind, const OpInView& op, bool is_still, double updates, double lost, double added);
  Finding finding_of(const Row& row) const;

  Names& names_;
  std::vector<Row> rows_;
  std::set<StringId> trained_;  // modules whose parameters an optimizer writes
};

}  // namespace nanhunt::analyze
