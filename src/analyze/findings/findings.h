// SPDX-License-Identifier: Apache-2.0
// From origins to findings: classify each, fold equal ones together, put the earliest first.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "nanhunt/analyzer.h"
#include "src/analyze/findings/case.h"
#include "src/analyze/watch/norm_watch.h"
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

// Which samples of the batch are bad, for a birth of kind kBatch.
struct BadSamples {
  std::vector<std::int64_t> ids;     // of the bad row, or of the whole batch
  std::vector<std::int64_t> coords;  // of the first bad element
  std::int64_t row = -1;
  bool rows_known = false;   // ids are those of bad rows
  bool may_be_more = false;  // rows beyond the first were not recorded
};
BadSamples bad_samples(const Case& c);

}  // namespace nanhunt::analyze
