// SPDX-License-Identifier: Apache-2.0
#include "src/analyze/findings/figure.h"

#include <algorithm>

namespace nanhunt::analyze {

bool is_of_model(const Case& c) { return c.birth.at.module != 0 && c.module() != kOutsideModules; }

// ValueGraph::judge_validation gives such a sink the phase kUpdate.
bool is_beside_training(const Birth& birth) {
  return is_between_steps(birth.at.phase) && !birth.sinks.empty() && std::ranges::all_of(birth.sinks, [](const SinkHit& sink) {
           return sink.kind == TensorRole::kOutput && sink.made_in == Phase::kUpdate;
         });
}

bool is_figure(const Case& c) {
  const Birth& birth = c.birth;
  if (!c.is_op() || is_of_model(c)) return false;
  if (is_beside_training(birth)) return true;
  if (birth.at.phase != Phase::kValidation) return false;
  const std::vector<ArgSnapshot>& read = c.context->op.inputs;
  const std::vector<ChainNode>& nodes = birth.chain.nodes;
  return !read.empty() &&
         std::ranges::all_of(read, [](const ArgSnapshot& in) { return in.known && in.bad == 0 && in.stats.numel == 1; }) &&
         std::ranges::all_of(nodes, [](const ChainNode& node) { return node.numel == 1; }) &&
         std::ranges::all_of(birth.sinks, [](const SinkHit& sink) { return sink.kind == TensorRole::kOutput; });
}

}  // namespace nanhunt::analyze
