// SPDX-License-Identifier: Apache-2.0
// The chain from an origin to its first sinks: connected, bounded, readable.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

std::string labels(const Chain& chain) {
  std::string out;
  for (const ChainNode& node : chain.nodes) out += node.role + ": " + node.label + "\n";
  return out;
}

TEST(Chain, runs_from_the_origin_to_the_first_sink_of_each_kind) {
  TraceBuilder t;
  const Handle e = t.in("fc1").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(2));
  const Handle m = t.in("fc2").op("sub", {{"self", e}, {"other", e}}, finite().nan(2));
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", m}}, finite(1).nan(1));
  t.mark(TensorRole::kLoss, "loss", l);
  const Handle g = t.in("fc1", Phase::kBackward).op("exp_backward", {{"result", e, ArgRole::kSaved}}, finite().nan(8));
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
  t.mark(TensorRole::kBoundaryGradient, "fc1.bias", g);
  t.end_step();
  const Chain chain = analysis_of(t).findings.at(0).chain;
  EXPECT_EQ(labels(chain),
            "origin: exp in fc1: 2 Inf of 8\n"
            "carrier: sub in fc2: 2 NaN of 8\n"
            "carrier: sum in <loss>: NaN\n"
            "carrier: exp_backward in fc1: 8 NaN of 8\n"
            "sink: loss: NaN\n"
            "sink: gradient of fc1.weight: 8 NaN of 8\n");
  std::string edges;
  for (const ChainEdge& edge : chain.edges) edges += std::to_string(edge.from) + ">" + std::to_string(edge.to) + " ";
  EXPECT_EQ(edges, "0>1 1>2 2>4 0>3 3>5 ");
  EXPECT_EQ(chain.nodes[1].lifecycle, Lifecycle::kTransform);
  EXPECT_EQ(chain.omitted, 0u);
}

TEST(Chain, a_gradient_is_told_in_the_phase_that_made_it_bad_and_what_a_step_ended_with_as_output) {
  for (const Phase phase : {Phase::kBackward, Phase::kClip, Phase::kUnscale}) {
    TraceBuilder t;
    const Handle d = t.value(finite().zeros(1));
    const Handle g = t.in("fc1", phase).op("div", {{"self", t.value(finite())}, {"other", d}}, finite().nan(8));
    t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
    t.end_step();
    const Chain chain = analysis_of(t).findings.at(0).chain;
    EXPECT_EQ(chain.nodes.back().op, "<gradient>");
    EXPECT_EQ(chain.nodes.back().phase, phase);
  }
  TraceBuilder t;
  t.in("fc1").op("log", {{"self", t.value(finite().range(-2, -1))}}, finite().nan(8));
  t.give_up(StepEnding::kException, "RuntimeError: not finite");
  const Chain chain = analysis_of(t).findings.at(0).chain;
  EXPECT_EQ(chain.nodes.back().op, "<output>");
  EXPECT_EQ(chain.nodes.back().phase, Phase::kForward);
}

TEST(Chain, takes_the_short_way) {
  TraceBuilder t;
  const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  Handle far = e;
  for (int i = 0; i < 10; ++i) far = t.in("far").op("mul", {{"self", far}}, finite().inf(1), {{"other", 1}});
  const Handle y = t.in("end").op("add", {{"self", far}, {"other", e}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", y);
  const Chain chain = analysis_of(t).findings.at(0).chain;
  ASSERT_EQ(chain.nodes.size(), 3u);
  EXPECT_EQ(chain.nodes[1].module, "end");
}

TEST(Chain, is_cut_to_64_nodes_and_keeps_origin_transform_and_sink) {
  TraceBuilder t;
  Handle y = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  for (int i = 0; i < 200; ++i)
    y = t.in("mid").op("mul", {{"self", y}}, i < 150 ? finite().inf(1) : finite().nan(1), {{"other", 1}});
  t.mark(TensorRole::kLoss, "loss", y);
  const Chain chain = analysis_of(t).findings.at(0).chain;
  EXPECT_EQ(chain.nodes.size(), 64u);
  EXPECT_EQ(chain.omitted, 201u - 63u);
  EXPECT_EQ(chain.nodes.front().role, "origin");
  EXPECT_EQ(chain.nodes.back().role, "sink");
  EXPECT_TRUE(std::any_of(chain.nodes.begin(), chain.nodes.end(),
                          [](const ChainNode& n) { return n.lifecycle == Lifecycle::kTransform; }));
  EXPECT_EQ(chain.edges.size(), 63u);
  for (const ChainEdge& edge : chain.edges) EXPECT_LT(edge.from, edge.to);
}

TEST(Chain, of_a_huge_bad_step_is_bounded) {
  TraceBuilder t;
  Handle y = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  for (int i = 0; i < 120000; ++i) y = t.in("mid").op("mul", {{"self", y}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", y);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | a | forward | step 0 | appear | observed\n");
  EXPECT_LE(a.findings[0].chain.nodes.size(), 64u);
  EXPECT_EQ(a.findings[0].chain.nodes.front().role, "origin");
  EXPECT_EQ(a.findings[0].chain.nodes.back().role, "sink");
}

TEST(Chain, of_an_op_and_its_derivative_shows_once_what_both_reach) {
  for (const bool zero : {true, false}) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    const std::int64_t bad = zero ? 2 : 0;
    const Handle p = t.value(finite().zeros(bad).range(zero ? 0 : 0.1, 1));
    const Handle l = t.op("log", {{"self", p}}, finite().neg_inf(bad));
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", l}}, finite(1).neg_inf(zero ? 1 : 0)));
    t.in("<loss>", Phase::kBackward);
    const Handle g =
        t.op("log_backward", {{"grad_output", t.value(finite())}, {"self", p, ArgRole::kSaved}}, finite().inf(bad));
    const Handle both = t.op("mul", {{"self", l}, {"other", g}}, finite().neg_inf(bad));
    t.mark(TensorRole::kBoundaryGradient, "fc1.weight", both);
    t.end_step(zero ? std::nan("") : 0.0);
    const Analysis a = analysis_of(t);
    ASSERT_EQ(a.findings.size(), zero ? 1u : 0u);
    if (!zero) continue;
    const std::vector<ChainNode>& nodes = a.findings[0].chain.nodes;
    EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(), [](const ChainNode& n) { return n.op == "<gradient>"; }), 1);
    EXPECT_EQ(std::count_if(nodes.begin(), nodes.end(), [](const ChainNode& n) { return n.op == "log_backward"; }), 1);
    for (const ChainEdge& edge : a.findings[0].chain.edges) EXPECT_LT(edge.to, static_cast<int>(nodes.size()));
  }
}

}  // namespace
}  // namespace nanhunt
