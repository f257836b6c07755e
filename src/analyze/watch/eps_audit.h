// SPDX-License-Identifier: Apache-2.0
// Every constant that guards a denominator, root or logarithm, and what is left of it in the format that stores the
// guarded number. Needs no failure.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

// A constant up to this size that is added right before a division, root or logarithm is taken for a guard.
inline constexpr double kLargestGuard = 1e-2;

class EpsAudit {
 public:
  EpsAudit(Names& names, ValueGraph& graph) : names_(names), graph_(graph) {}
  void on_op(const OpInView& op);
  std::vector<EpsAuditRow> rows() const { return rows_; }  // in order of first sight
  // Constants that round to 0 or are subnormal where they are added: one finding for each constant, format and phase.
  std::vector<Finding> findings() const;

 private:
  struct First {  // where a row was seen first
    OpRef at;
    StringId site = 0;
    bool added = true;  // x + eps, as optimizers and norms have it; else a lower limit
  };
  std::vector<double> guards_of(const RecentOp& maker);  // what it adds, or its lower limit: small constants
  void count(const First& place, double eps, DType dtype, std::uint64_t zeros);

  static constexpr std::size_t kMaxRows = 4096;
  Names& names_;
  ValueGraph& graph_;
  std::vector<EpsAuditRow> rows_;
  std::vector<First> first_;  // of rows_
  std::map<std::tuple<StringId, StringId, Phase, double, DType>, std::size_t> index_;
};

}  // namespace nanhunt::analyze
