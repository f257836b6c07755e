// SPDX-License-Identifier: Apache-2.0
// From origins to findings: classify each, fold equal ones together, put the earliest first.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/watch/norm_watch.h"
#include "src/analyze/watch/scaler_watch.h"
#include "src/analyze/findings/probe_verdict.h"
#include "src/analyze/ranks/rank_verdict.h"
#include "src/analyze/rules/returned.h"
#include "src/analyze/graph/value_graph.h"

namespace nanhunt::analyze {

using HistogramMap = std::map<std::uint64_t, std::vector<HistogramRecord>>;  // by op

struct FaultContext {
  const EvidenceMap& evidence;
  const HistogramMap& histograms;
  const ScalerWatch& scaler;
  const std::vector<Growth>& growths;
  const ProbeMap& probes;
  const RankVerdict& others;
  const std::set<std::int64_t>& other_sizes;  // ValueGraph::other_sizes
};
// Faults, in the order in which their badness first did harm.
// What the loss scaler calibrated away is one finding that is no fault.
std::vector<Finding> find_faults(const ValueGraph& graph, Names& names, const FaultContext& context);

}  // namespace nanhunt::analyze
