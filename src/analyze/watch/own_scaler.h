// SPDX-License-Identifier: Apache-2.0
// A loss scaler that a program wrote for itself, known by what it does: a number multiplies the loss, and gradients are
// divided by the same number; or the loss is multiplied last by a large number, and a step whose gradients are bad is
// given up. What it did goes to ScalerWatch as if it had been told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "src/analyze/graph/value_graph.h"
#include "src/analyze/stream/names.h"
#include "src/analyze/watch/scaler_watch.h"

namespace nanhunt::analyze {

inline constexpr double kSameScale = 1e-3;   // relative: 1 / scale is rounded to the gradients' format
inline constexpr double kSameLimit = 1e-5;   // relative: a norm is a sum in fp32, and 1e-6 is added to it
inline constexpr double kWhole = 1e-9;       // relative: a number of Python's is known to the last bit
inline constexpr double kLeastScale = 8;     // of a number that is taken for a scale because a step was given up

class OwnScaler {
 public:
  OwnScaler(Names& names, ScalerWatch& scaler) : names_(names), scaler_(scaler) {}

  void on_collective(const CollectiveRecord& record) { ranks_.insert(record.ranks.size()); }
  void on_op(const OpInView& op);
  void on_step_end(const StepRecord& step, ValueGraph& graph);

 private:
  // The place in the program at which a loss is multiplied.
  using Site = std::tuple<StringId, StringId, StringId>;  // op, call site, module
  struct Factor {
    double number = 1;
    Site site;
    std::uint64_t seq = 0;
    std::uint32_t micro_batch = 0;
  };

  void enter(std::uint32_t step);
  void on_loss(const OpInView& op, double number);
  void on_gradient(const OpInView& op, double number);
  void on_clip(const OpInView& op, double number);
  void note_norm(const OpInView& op);
  bool is_limit_of_norm(double number) const;
  void use(const Factor& factor);
  void use_last();
  void tell(ScalerAction action, const Factor& at, double scale);

  Names& names_;
  ScalerWatch& scaler_;
  std::set<std::size_t> ranks_;  // how many there are in the groups: gradients that are divided by that are averaged
  std::uint32_t step_ = 0;
  std::vector<Factor> factors_;  // of the step at hand
  std::optional<double> divided_;  // by which gradients were, of no loss that was multiplied by it
  std::optional<Factor> last_;  // at `site_`, of the loss at hand: a weight of a term may be multiplied by there as well
  std::optional<Site> site_;     // where the scale multiplies the loss, once that is known
  double scale_ = 1;
  bool used_ = false, unscaled_ = false;  // in this step
  bool is_told_ = false;         // the number that a step's record gives is the scale, as far as both were seen
  // Gradients were multiplied, before they were unscaled, by a number that was made of gradients.
  struct Clipped {
    std::optional<double> by;
    std::map<std::uint64_t, double> copies;  // by storage: not in place, so what is unscaled tells whether it was used
    std::vector<double> norms;               // numbers that clipping has made
    double number = 1;                       // of Python's, known to be made of them
  };
  Clipped clipped_;
  static constexpr std::size_t kMaxFactors = 16, kMaxNorms = 4096;
};

}  // namespace nanhunt::analyze
