// SPDX-License-Identifier: Apache-2.0
// How the program had set up its precision: autocast, loss scaler, optimizer, parameters. Needs no failure.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// A loss that is multiplied by this much or more is scaled, whoever does it. src/analyze/rules/GUIDE.md.
inline constexpr double kLeastLossScale = 8;

class SetupAudit {
 public:
  explicit SetupAudit(const Names& names) : names_(names) {}
  void on_setup(const SetupRecord& record);
  void on_op(const OpInView& op);
  void on_step_end(const StepRecord& step, bool scaled);
  bool autocasts(DType dtype) const;  // a model ran under autocast to this format
  bool autocasts() const { return autocasts(DType::kF16) || autocasts(DType::kBF16); }
  // `scaler`: what is known of the run's loss scaler; nullptr: none was seen.
  std::vector<Finding> findings(const ScalerSection* scaler) const;

 private:
  struct Seen {
    SetupRecord record;
    std::uint64_t count = 0;
  };
  Finding finding_of(const SetupRecord& record) const;
  const Seen* first(SetupFact fact) const;
  const Seen* first(SetupFact fact, DType dtype) const;

  static constexpr std::size_t kMaxSeen = 64;  // facts of a kind and format
  const Names& names_;
  std::vector<Seen> seen_;
  std::uint64_t finished_ = 0;  // steps that an optimizer ended
  bool scaled_ = false;         // the loss was scaled, by whatever
};

}  // namespace nanhunt::analyze
