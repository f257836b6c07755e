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
  t.in("fc1", Phase::kBackward)
      .op("addmm_backward", {}, finite(8).as(DType::kF16).range(0, 1).subnormals(1).zeros(2).flushed(1));
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
  EXPECT_EQ(fc2.bad_forward.step, 1u);
  EXPECT_NE(fc2.bad_forward.seq, kNoSeq);
  EXPECT_EQ(fc2.bad_gradient.seq, kNoSeq) << "forward and backward apart";
  EXPECT_EQ(fc1.bad_forward.seq, kNoSeq);
  EXPECT_TRUE(std::isnan(fc2.headroom_gradient));
  // and the map says when
  ASSERT_EQ(a.layer_map.columns, 2u);
  ASSERT_EQ(a.layer_map.nonfinite.size(), 4u);
  EXPECT_EQ(a.layer_map.nonfinite, (std::vector<std::uint8_t>{0, 0, 0, 1}));
  EXPECT_NEAR(a.layer_map.headroom[0], 5, 0.01);
  EXPECT_TRUE(std::isnan(a.layer_map.headroom[1]));
}

// Gradients of fp16, so large under the scale of the step; a step is skipped where `overflows` says so.
Analysis scaled_steps(std::vector<std::pair<double, double>> scale_and_amax, double overflows = 1e9) {
  TraceBuilder t;
  ScalerRecord create;
  create.action = ScalerAction::kCreate;
  create.scale = scale_and_amax.front().first;
  create.growth_factor = 2;
  create.backoff_factor = 0.5;
  create.growth_interval = 2000;
  t.scaler(create, "torch.amp");
  for (const auto& [scale, amax] : scale_and_amax) {
    ScalerRecord scaled;
    scaled.action = ScalerAction::kScale;
    scaled.scale = scale;
    t.scaler(scaled);
    const bool skipped = scale >= overflows;
    const Handle g = t.value(finite().as(DType::kF16));
    t.in("fc1", Phase::kBackward).op("mm_backward", {{"grad_output", g}}, finite().as(DType::kF16).range(-amax, amax));
    t.in("fc2", Phase::kBackward).op("mm_backward", {{"grad_output", g}}, finite().as(DType::kF16).range(-1e-3, 1e-3));
    t.in("fc3", Phase::kBackward).op("mm_backward", {{"grad_output", g}}, finite().as(DType::kBF16).range(-1e9, 1e9));
    t.end_step(1, scale, skipped);
  }
  return analysis_of(t);
}

TEST(Headroom, recommends_the_largest_scale_that_was_seen_to_hold_and_tells_what_overflows_above_it) {
  // 60000 at scale 1024 passes 65504 at 2048
  std::vector<std::pair<double, double>> steps = {{4096, 60000}, {2048, 60000}};
  for (int i = 0; i < 20; ++i) steps.emplace_back(1024, 60000);
  const Analysis a = scaled_steps(steps, /*overflows=*/2048);
  ASSERT_TRUE(a.scaler);
  EXPECT_EQ(a.scaler->recommended_init_scale, 1024);
  EXPECT_EQ(a.scaler->capped_by, "fc1");
}

TEST(Headroom, recommends_no_scale_that_was_not_seen_to_hold) {
  // none was skipped: nobody knows what a larger one does
  EXPECT_EQ(scaled_steps({{256, 100}, {256, 655}, {256, 90}}).scaler->recommended_init_scale, 0);
  // all were
  EXPECT_EQ(scaled_steps({{4096, 60000}, {2048, 60000}, {1024, 10}}, /*overflows=*/1).scaler->recommended_init_scale, 0);
  // two steps may be luck
  EXPECT_EQ(scaled_steps({{4096, 60000}, {1024, 10}, {1024, 10}}, 2048).scaler->recommended_init_scale, 0);
}

TEST(Headroom, recommends_nothing_without_gradients_of_16_bits) {
  TraceBuilder t;
  ScalerRecord scaled;
  scaled.action = ScalerAction::kScale;
  scaled.scale = 8;
  t.scaler(scaled);
  const Handle g = t.value(finite());
  t.in("fc1", Phase::kBackward).op("mm_backward", {{"grad_output", g}}, finite().range(-1, 1));
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_TRUE(a.scaler);
  EXPECT_EQ(a.scaler->recommended_init_scale, 0);
  EXPECT_EQ(a.scaler->capped_by, "");
}

// The largest fp16 activation of each step, in binades.
LayerSummary activations(const std::vector<double>& binades) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  for (const double b : binades) {
    t.in("fc1").op("addmm", {{"self", x}}, finite().as(DType::kF16).range(0, std::exp2(b)));
    t.end_step();
  }
  return analysis_of(t).layers.at(0);
}

TEST(Trend, tells_the_steps_that_are_left_of_even_growth) {
  // given growth by a tenth of a binade a step, up to 2^5 of 2^16, with a little noise
  std::vector<double> binades;
  for (int i = 0; i < 40; ++i) binades.push_back(1.1 + 0.1 * i + (i % 2 == 0 ? 0.02 : -0.02));
  // when
  const LayerSummary layer = activations(binades);
  // then 11 binades are left
  EXPECT_NEAR(layer.steps_to_overflow, 110, 5);
  EXPECT_GT(layer.steps_to_overflow_error, 0);
  EXPECT_LT(layer.steps_to_overflow_error, 10);
}

TEST(Trend, is_silent_where_nothing_grows_or_not_evenly) {
  const auto is_silent = [](const std::vector<double>& binades) {
    return std::isnan(activations(binades).steps_to_overflow);
  };
  std::vector<double> still, falling, noisy, few, slow;
  for (int i = 0; i < 40; ++i) {
    still.push_back(3);
    falling.push_back(8 - 0.1 * i);
    noisy.push_back(3 + 0.02 * i + (i * 7919 % 13) * 0.5);
    if (i < 10) few.push_back(0.1 * i);
    slow.push_back(1 + 1e-4 * i);
  }
  EXPECT_TRUE(is_silent(still));
  EXPECT_TRUE(is_silent(falling));
  EXPECT_TRUE(is_silent(noisy));
  EXPECT_TRUE(is_silent(few));
  EXPECT_TRUE(is_silent(slow));  // beyond the horizon
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
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(f.inputs.at(0).stats.histogram, (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(f.inputs.at(0).stats.histogram_min_exponent, -2);
  EXPECT_EQ(f.output->stats.histogram, (std::vector<std::int64_t>{7}));
}

}  // namespace
}  // namespace nanhunt
