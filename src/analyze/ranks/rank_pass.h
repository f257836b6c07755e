// SPDX-License-Identifier: Apache-2.0
// The analysis of one rank in two halves: its records first, then its findings, which depend on the other ranks.
#pragma once

#include <memory>

#include "nanhunt/analyzer.h"
#include "src/analyze/ranks/comm_watch.h"
#include "src/analyze/ranks/rank_verdict.h"
#include "src/analyze/ranks/replicas.h"
#include "src/analyze/watch/health_watch.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

class RankPass : public Analyzer {
 public:
  static std::unique_ptr<RankPass> make(const AnalyzeOptions& options, std::uint32_t rank);

  // No more records: what only they need is freed.
  virtual void end(const TraceHealth& health) = 0;
  virtual std::uint32_t rank() const = 0;
  virtual const Names& names() const = 0;
  virtual ValueGraph& graph() = 0;
  virtual const CommWatch& comm() const = 0;
  virtual const HealthWatch& health() const = 0;
  virtual const ReplicaWatch& replicas() const = 0;
  // Findings without ids, in no final order, and no verdict: findings/merge.h adds them.
  virtual Analysis judge(const RunInfo& info, const TraceHealth& health, const RankVerdict& others) = 0;
};

}  // namespace nanhunt::analyze
