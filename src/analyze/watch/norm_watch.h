// SPDX-License-Identifier: Apache-2.0
// Norms of gradients and weights, step by step, from what was marked: for the timeline, and to see whether training as
// a whole grew before it overflowed. Thresholds: src/analyze/rules/GUIDE.md.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "src/analyze/stream/flat_map.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/stream/value_table.h"

namespace nanhunt::analyze {

inline constexpr std::size_t kGrowthWindow = 32;  // steps looked back over
inline constexpr std::size_t kGrowthSteps = 3;    // of them with a finite loss, from the smallest on
inline constexpr double kLossGrowth = 100;        // factor over those steps
inline constexpr double kEarlyGrowth = 4;         // of the loss, one step before the last finite one
inline constexpr double kGradientGrowth = 100;
inline constexpr double kWeightGrowth = 2;        // of most layers
inline constexpr double kUpdateRatio = 0.1;       // change of a layer's weight norm in one step, of most layers
inline constexpr double kOneUpdate = 10;          // factor of the weight norm of most layers, of one update
inline constexpr std::size_t kCalmSteps = 8;     // the first, whose largest loss is compared where growth is slow
inline constexpr double kRunGrowth = 1000;        // factor over the run
inline constexpr std::size_t kUpdatesShown = 8;    // of the layer that grew most
inline constexpr std::size_t kUpdatesBefore = 4;  // steps before the bad one in which that is looked for

// How loss, gradients and the weights of most layers grew together, by the optimizer's own steps: within a window of
// steps, in one update (that of from_step), or over the run.
enum class GrowthKind : std::uint8_t { kOverSteps, kInOneUpdate, kOverRun };

struct Growth {
  GrowthKind kind = GrowthKind::kOverSteps;
  double lr = std::numeric_limits<double>::quiet_NaN();  // of from_step
  double negative_lr = 0;  // the first rate below 0 of those steps; 0: none
  std::uint32_t negative_from = 0;  // its step
  std::uint32_t step = 0;  // first one with a bad sink
  // Up to here all that overflows is of this growth: the first later step whose loss is that of before again.
  std::uint32_t until = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t from_step = 0, to_step = 0;
  double loss_from = 0, loss_to = 0, gradient_from = 0, gradient_to = 0;
  std::size_t layers = 0, grown = 0;
  std::string fastest;  // layer
  double fastest_from = 0, fastest_to = 0, update_ratio = 0;
  std::vector<double> updates;  // of `fastest`, step by step up to `updates_to`: the change of its norm, of its norm before
  std::vector<double> update_lrs;  // of these steps
  std::uint32_t updates_to = 0;
  std::string wide_column;  // of what a model is given: "column 7 of input 0"; empty: none is out of scale
  double column_ratio = 0;  // its reach, of that of the median column

  bool lasts() const { return until == std::numeric_limits<std::uint32_t>::max(); }
  bool holds(std::uint32_t at) const { return at >= step && at < until; }
};

class NormWatch {
 public:
  explicit NormWatch(const Names& names) : names_(names) {}

  void on_setup(const SetupRecord& record);
  // `divisor`: what the gradients of this step are still multiplied by.
  void on_mark(const MarkRecord& mark, const Value& value, double divisor);
  struct Norms {
    double gradient = std::numeric_limits<double>::quiet_NaN();  // NaN: not seen, infinity: not finite
    double weight = std::numeric_limits<double>::quiet_NaN();
  };
  // The program wrote over this parameter before the forward of that step: its norm is no longer that of an update.
  void note_write(StringId path, std::uint32_t step);
  // A norm of a step before a bad one, as it was kept.
  void on_norm(const NormRecord& record);
  // `bad`: a sink of this step is not finite. `gradient_norm`: that of the step's health, where there is one.
  Norms on_step_end(std::uint32_t step, double loss, bool bad, const double* gradient_norm = nullptr,
                    double lr = std::numeric_limits<double>::quiet_NaN());

  // Of steps with a bad sink after finite ones.
  const std::vector<Growth>& growths() const { return growths_; }

 private:
  static constexpr std::size_t kMaxParameters = 1u << 14;
  static constexpr std::size_t kMaxGrowths = 16, kMaxJudged = 4096;
  static constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();

  struct Parameter {
    StringId path = 0;
    double weight_sq = kUnseen, gradient_sq = kUnseen;  // infinity: not finite
    double first_sq = kUnseen;  // of the weight, when it was seen first
    bool gradient_now = false, weight_now = false;  // seen in this step
    std::uint32_t written_in = 0;  // the last step in which the program wrote over it; 0: none
    std::vector<double> history;  // weight norms squared, as a ring
  };
  struct Entry {
    std::uint32_t step = 0;
    double loss = 0, gradient = kUnseen, lr = kUnseen;
  };
  Parameter* parameter(StringId path);
  std::size_t end_of_finite(std::uint32_t step) const;
  std::optional<Growth> judge(std::uint32_t step) const;
  std::optional<Growth> judge_updates(std::uint32_t step) const;
  std::optional<Growth> judge_run(std::uint32_t step) const;
  bool judge_update(std::size_t entry, Growth& g) const;
  void add_updates(Growth& g) const;
  double weight_sq(const Parameter& p, std::size_t back) const;  // `back` steps before the newest

  const Names& names_;
  std::string wide_column_;  // the widest of all
  double column_ratio_ = 0;
  FlatMap<std::uint32_t> index_;  // by path, plus one
  std::vector<Parameter> parameters_;
  bool too_many_ = false;
  std::deque<Entry> entries_;
  Entry first_;            // the first step
  double calm_loss_ = 0;  // largest magnitude of the first kCalmSteps losses
  std::uint64_t steps_ = 0;
  std::size_t judged_ = 0;
  static constexpr std::size_t kSoundSteps = 16;
  std::size_t sound_ = 0;  // steps without anything bad, since the last one of a divergence that had
  std::vector<Growth> growths_;
};

}  // namespace nanhunt::analyze
