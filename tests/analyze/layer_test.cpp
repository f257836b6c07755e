// SPDX-License-Identifier: Apache-2.0
// What a report shows of layers: sums over the run, and the map of layers by steps.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

TEST(Layers, keep_forward_and_gradients_apart) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  t.in("fc1").op("addmm", {{"self", x}}, finite().as(DType::kF16).range(-2047, 100));
  t.in("fc1").op("relu", {{"self", x}}, finite().range(0, 1));
  t.in("fc1", Phase::kBackward).op("addmm_backward", {}, finite(8).as(DType::kF16).range(0, 1).subnormals(1).zeros(2).flushed(1));
  t.in("fc1.weight", Phase::kOptimizer).op("mul", {{"self", x}}, finite());
  t.end_step();
  t.in("fc2").op("exp", {{"self", x}}, finite().inf(2).nan(1).range(0, 1));
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.layers.size(), 2u);
  const LayerSummary& fc1 = a.layers[0];
  EXPECT_EQ(fc1.module, "fc1");
  EXPECT_EQ(fc1.dtype, DType::kF16);
  EXPECT_EQ(fc1.ops, 3u);
  EXPECT_EQ(fc1.bad_ops, 0u);
  EXPECT_EQ(fc1.amax_forward, 2047);
  EXPECT_NEAR(fc1.headroom_forward, 5, 0.01);
  EXPECT_NEAR(fc1.headroom_gradient, 16, 0.01);
  EXPECT_EQ(fc1.underflow_gradient, 0.25);
  EXPECT_EQ(fc1.underflow_forward, 0);
  const LayerSummary& fc2 = a.layers[1];
  EXPECT_EQ(fc2.bad_ops, 1u);
  EXPECT_EQ(fc2.nan, 1);
  EXPECT_EQ(fc2.inf, 2);
  EXPECT_EQ(fc2.first_bad_step, 1u);
  EXPECT_TRUE(std::isnan(fc2.headroom_gradient));
  // and the map says when
  ASSERT_EQ(a.layer_map.columns, 2u);
  ASSERT_EQ(a.layer_map.nonfinite.size(), 4u);
  EXPECT_EQ(a.layer_map.nonfinite, (std::vector<std::uint8_t>{0, 0, 0, 1}));
  EXPECT_NEAR(a.layer_map.headroom[0], 5, 0.01);
  EXPECT_TRUE(std::isnan(a.layer_map.headroom[1]));
}

TEST(Layers, of_a_mask_are_not_bad) {
  TraceBuilder t;
  t.in("attn").op("full", {}, finite().neg_inf(2), {{"fill_value", -std::numeric_limits<double>::infinity()}});
  t.end_step();
  EXPECT_EQ(analysis_of(t).layers.at(0).bad_ops, 0u);
}

TEST(Layers, of_a_long_run_fit_512_columns_and_lose_no_bad_one) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  for (std::uint32_t step = 0; step < 3000; ++step) {
    t.in("fc").op("exp", {{"self", x}}, step == 1234 ? finite().inf(1) : finite().range(0, step == 2000 ? 1e30 : 1));
    t.end_step();
  }
  const LayerMap map = analysis_of(t).layer_map;
  EXPECT_LE(map.columns, 512u);
  EXPECT_EQ(map.steps_per_column, 8u);
  EXPECT_EQ(map.columns, 375u);
  for (std::uint32_t column = 0; column < map.columns; ++column) {
    EXPECT_EQ(map.nonfinite[column], column == 1234 / 8 ? 1 : 0);
    EXPECT_EQ(map.headroom[column] < 100, column == 2000 / 8) << column;
  }
}

TEST(Layers, beyond_2048_are_counted) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  for (int i = 0; i < 2050; ++i) t.in("layer" + std::to_string(i)).op("exp", {{"self", x}}, finite());
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.layers.size(), 2048u);
  EXPECT_EQ(a.layers_omitted, 2u);
}

TEST(Histograms, of_the_origin_are_shown_with_its_inputs_and_output) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(0, 100));
  const Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
  t.histogram(x, -2, {1, 2, 3});
  t.histogram(e, 0, {7});
  t.mark(MarkKind::kLoss, "loss", e);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(f.inputs.at(0).stats.histogram, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(f.inputs.at(0).stats.histogram_min_exponent, -2);
  EXPECT_EQ(f.output->stats.histogram, (std::vector<std::int64_t>{7}));
}

}  // namespace
}  // namespace nanhunt
