// SPDX-License-Identifier: Apache-2.0
// update_loss: an optimizer adds to a 16-bit parameter less than half of what separates two of its numbers, and
// nothing changes. No number is ever bad, training just stands still. Needs no failure; reads the counts that the
// recorder took.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// Thresholds: src/analyze/rules/GUIDE.md.
inline constexpr double kLostUpdates = 0.5;     // share of a parameter's updates that change nothing, and of their sum
inline constexpr double kAllUpdatesLost = 0.8;  // the parameter stands still
inline constexpr std::uint32_t kLostUpdateSteps = 5;  // steps in a row of a parameter past it
inline constexpr double kFewestUpdates = 4;           // elements; of fewer no share is taken
inline constexpr double kConverged = 0.1;  // of the first loss: training that stops here may have had enough

// What the recorder counted at an op: elements that were to change, those of them that did not, and their share of the sum
// of all changes. nullopt: it counted nothing there.
struct LostCounts {
  double updates = 0, lost = 0, share = 0;
};
std::optional<LostCounts> lost_counts(const OpInView& op, const Names& names);

class UpdateLoss {
 public:
  explicit UpdateLoss(Names& names) : names_(names) {}
  void on_op(const OpInView& op);
  void on_mark(const MarkRecord& mark);
  void on_step_end(std::uint32_t step, double loss);
  std::optional<Finding> finding() const;
  std::vector<UpdateLossRow> rows() const;

 private:
  static constexpr std::size_t kMaxRows = 4096;
  struct Row {
    OpRef at;  // of the first step past the threshold, else the first
    StringId call_site = 0;
    ArgSnapshot output;
    std::vector<ArgSnapshot> inputs;
    double updates = 0, lost = 0;  // of that step
    DType dtype = DType::kF16;
    bool average = false;
    bool copy = false;  // an average of weights, a teacher: most of what it loses stops no training
    std::uint64_t steps = 0, over = 0;
    std::uint32_t first_over = 0, last_over = 0, run = 0, longest_run = 0;  // of steps past the threshold
    double share_now = 0, sum = 0, worst = 0;
    bool measured_now = false, over_now = false;
  };
  bool stood_still_early() const;
  void take(Row& row, const OpInView& op, double updates, double lost) const;
  void take_copied(const OpInView& op);
  void take_sum(ValueId sum, StringId average);
  void count(StringId module, const Row& taken, bool over);

  Names& names_;
  // Sums that were made between two steps, by value: one that turns out to be an average, or is copied into one, was its
  // update.
  static constexpr std::size_t kMaxSums = 4096;
  struct Sum {
    Row row;
    bool over = false;
  };
  std::map<ValueId, Sum> sums_;
  std::map<std::pair<StringId, bool>, std::size_t> index_;  // by module, and whether an average
  std::vector<Row> rows_;
  std::uint32_t steps_dead_ = 0, run_ = 0, longest_run_ = 0, first_dead_ = 0, last_over_ = 0;
  std::optional<double> first_loss_, loss_at_stop_;  // stop: the first step of the first long enough run
  double run_loss_ = 0;
};

}  // namespace nanhunt::analyze
