// SPDX-License-Identifier: Apache-2.0
// Rule exploding: training as a whole grew before it overflowed. Growth of one layer alone is an overflow there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Divergence {
  double loss = 3000, gradient = 2000;        // factor per step
  std::vector<double> weights = {8, 6, 5};    // factor per step, of each layer
  int steps = 4;                              // finite ones
  int calm = 0;                               // of them, at first, without growth
  bool overflow = true;
  double wide = 0;                            // reach of a column, of that of the median one; 0: none was out of scale
  bool accumulates = false, clears = true;    // gradients stay where they are; and are zeroed before each backward
  double lr = 1;                              // from step 1 on
  std::uint32_t missing = 0;                  // steps after each that the trace does not hold
};

Analysis diverging(const Divergence& d) {
  TraceBuilder t;
  std::vector<Handle> weights, grads(d.weights.size());
  const auto path = [](std::size_t layer) { return "net." + std::to_string(layer) + ".weight"; };
  const auto grown = [&](int step) { return std::max(0, step - d.calm); };
  const auto norm = [&](double factor, int step) { return std::pow(factor * factor, grown(step)); };
  for (std::size_t i = 0; i < d.weights.size(); ++i) {
    weights.push_back(t.value(finite().squares(1)));
    t.mark(TensorRole::kParameter, path(i), weights[i]);
  }
  if (d.wide > 0) t.setup(SetupFact::kWideColumn, "net", "", DType::kF32, d.wide, "column 7 of input 0");
  for (int step = 0; step <= d.steps; ++step) {
    const bool bad = d.overflow && step == d.steps;
    const Handle y = t.in("net.1").op("mm", {{"self", weights[0]}, {"mat2", weights[0]}},
                                          bad ? finite().range(-1e25, 1e25) : finite());
    const Handle l = t.in("<loss>", Phase::kLoss)
                         .op("mse_loss", {{"self", y}}, bad ? finite(1).inf(1) : finite(1).range(0, 1));
    t.mark(TensorRole::kLoss, "loss", l);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Numbers g = finite().squares(norm(d.gradient, step));
      if (d.accumulates && d.clears && step > 0)
        t.in("", Phase::kData).called_from("").in_place("zero_", grads[i], {}, finite().range(0, 0).zeros(8));
      Handle grad = t.in("net", Phase::kBackward).op("mm_backward", {{"grad_output", l}}, bad ? g.nan(8) : g);
      if (d.accumulates && step > 0) {
        t.in(path(i), Phase::kBackward).in_place("add_", grads[i], {{"other", grad}}, bad ? g.nan(8) : g);
        grad = grads[i];
      }
      grads[i] = grad;
      t.mark(TensorRole::kBoundaryGradient, path(i), grad);
      const Numbers w = finite().squares(norm(d.weights[i], step + 1));
      t.in(path(i), Phase::kOptimizer).called_from("train.py:31").in_place("add_", weights[i], {{"other", grad}}, bad ? w.nan(8) : w);
      t.mark(TensorRole::kParameter, path(i), weights[i]);
    }
    t.lr(step > 0 ? d.lr : 1);
    t.end_step(bad ? std::numeric_limits<double>::infinity() : std::pow(d.loss, grown(step)));
    t.step(t.now() + d.missing);
  }
  return analysis_of(t);
}

TEST(Exploding, is_the_growth_of_most_layers_before_the_first_overflow) {
  const Analysis a = diverging({});
  EXPECT_EQ(table(a), "exploding | - | net.0 | loss | step 4 | appear | observed\n");
  EXPECT_EQ(a.findings[0].title,
            "Training diverged: the loss grew from 1 to 2.7e10 in 3 steps before anything overflowed");
  const std::vector<std::string>& evidence = a.findings[0].evidence;
  const auto says = [&](const char* text) {
    return std::any_of(evidence.begin(), evidence.end(), [&](const std::string& line) { return line.find(text) != line.npos; });
  };
  EXPECT_TRUE(says("mse_loss in <loss>"));
  EXPECT_TRUE(says("The updates of steps 0 to 3 changed the norm of net.0 by 700%, 700%, 700% and 700%."))
      << ::testing::PrintToString(evidence);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "lower-lr");
  EXPECT_EQ(a.findings[0].advice.at(1).id, "warm-up");
}

TEST(Exploding, of_gradients_that_nobody_clears_is_told_under_them) {
  const Analysis a = diverging({.accumulates = true, .clears = false});
  ASSERT_FALSE(a.findings.empty());
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.cls, FindingClass::kApiMisuse) << table(a);
  EXPECT_EQ(f.call_site, "train.py:31");
  EXPECT_EQ(f.advice.at(0).id, "clear-gradients");
  EXPECT_THAT(f.evidence, ::testing::Contains(::testing::HasSubstr("Training diverged: the loss grew")));
  // given gradients that are zeroed, or made anew, or steps between which others are missing
  for (const Divergence& d : {Divergence{.accumulates = true}, Divergence{},
                              Divergence{.accumulates = true, .clears = false, .missing = 1}})
    EXPECT_NE(diverging(d).findings.at(0).cls, FindingClass::kApiMisuse);
}

TEST(Exploding, under_a_negative_learning_rate_is_told_of_that) {
  const Finding f = diverging({.lr = -0.5}).findings.at(0);
  EXPECT_EQ(f.cls, FindingClass::kExploding);
  EXPECT_THAT(f.title, ::testing::EndsWith("its learning rate is below 0 from step 1 on"));
  EXPECT_THAT(f.explanation, ::testing::StartsWith("The learning rate of step 1 was -0.5"));
  EXPECT_EQ(f.advice.at(0).id, "mend-schedule");
  EXPECT_EQ(f.advice.size(), 1u);
  // its twin: a rate that falls to 0
  EXPECT_EQ(diverging({.lr = 0}).findings.at(0).advice.at(0).id, "lower-lr");
}

TEST(Exploding, names_the_column_that_is_out_of_scale) {
  const Finding f = diverging({.wide = 300}).findings.at(0);
  EXPECT_THAT(f.evidence, ::testing::Contains(::testing::HasSubstr("column 7 of input 0 reaches 300 times as far")));
  EXPECT_EQ(f.advice.at(0).id, "lower-lr");
  EXPECT_EQ(f.advice.at(1).id, "scale-inputs");
}

TEST(Exploding, needs_loss_gradients_and_most_layers_to_grow_over_several_steps) {
  const std::string overflow = "overflow | mse_loss | <loss> | loss | step 4 | appear | observed\n";
  EXPECT_EQ(table(diverging({.weights = {8, 1, 1}})), overflow);
  EXPECT_EQ(table(diverging({.weights = {1.001, 1.001, 1.001}})), overflow);
  EXPECT_EQ(table(diverging({.loss = 1.1})), overflow);
  EXPECT_EQ(table(diverging({.gradient = 1.1})), overflow);
  EXPECT_EQ(table(diverging({.steps = 2})), "overflow | mse_loss | <loss> | loss | step 2 | appear | observed\n");
}

TEST(Exploding, is_not_told_of_one_jump_from_calm) {
  const std::string overflow = "overflow | mse_loss | <loss> | loss | step 6 | appear | observed\n";
  EXPECT_EQ(table(diverging({.steps = 6, .calm = 4})), overflow);
  EXPECT_EQ(table(diverging({.steps = 6, .calm = 3})), "exploding | - | net.0 | loss | step 6 | appear | observed\n");
}

TEST(Exploding, is_not_told_of_growth_over_steps_that_the_trace_does_not_hold) {
  EXPECT_EQ(table(diverging({.missing = 1000})),
            "overflow | mse_loss | <loss> | loss | step 4004 | appear | observed\n");
}

TEST(Exploding, counts_growth_that_no_window_shows) {
  const Analysis a = diverging({.loss = 1.1, .gradient = 1.1, .weights = {1.03, 1.02, 1.02}, .steps = 120});
  EXPECT_EQ(table(a), "exploding | - | net.0 | loss | step 120 | appear | observed\n");
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "check-update");
  EXPECT_EQ(table(diverging({.loss = 1.1, .gradient = 1.1, .weights = {1.001, 1.001, 1.001}, .steps = 120})),
            "overflow | mse_loss | <loss> | loss | step 120 | appear | observed\n");
}

TEST(Exploding, is_silent_while_nothing_overflows) { EXPECT_EQ(table(diverging({.overflow = false})), "clean\n"); }

TEST(Timeline, holds_norms_of_gradients_without_the_scale_and_of_weights) {
  TraceBuilder t;
  Handle w = t.value(finite().squares(9));
  t.mark(TensorRole::kParameter, "fc.weight", w);
  ScalerRecord scale;
  scale.action = ScalerAction::kScale;
  scale.scale = 1024;
  for (const bool unscaled : {false, true}) {
    t.scaler(scale);
    Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, finite().squares(16 * 1024.0 * 1024));
    if (unscaled)
      t.in("", Phase::kUnscale).in_place("_amp_foreach_non_finite_check_and_unscale_", g, {}, finite().squares(16));
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    t.end_step();
  }
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.timeline.size(), 3u);
  EXPECT_EQ(a.timeline[0].gradient_norm, 4);
  EXPECT_EQ(a.timeline[1].gradient_norm, 4);
  EXPECT_TRUE(std::isnan(a.timeline[2].gradient_norm));
  EXPECT_EQ(a.timeline[2].weight_norm, 3);
}

// A loss that is calm, one update, and an overflow in the next step.
struct OneUpdate {
  std::vector<double> weights = {1e3, 1e3, 50};  // factor of that update, of each layer
  double loss_before = 2;                        // of the step of that update; of those before: 2
  int step = 0;
  double lr = 0.5;
};
Analysis updated_once(const OneUpdate& d) {
  TraceBuilder t;
  std::vector<Handle> weights;
  const auto path = [](std::size_t layer) { return "net." + std::to_string(layer) + ".weight"; };
  for (std::size_t i = 0; i < d.weights.size(); ++i) {
    weights.push_back(t.value(finite().squares(1)));
    t.mark(TensorRole::kParameter, path(i), weights[i]);
  }
  for (int step = 0; step <= d.step + 1; ++step) {
    const bool bad = step > d.step;
    const Handle y = t.in("net.1").op("mm", {{"self", weights[0]}, {"mat2", weights[0]}}, bad ? finite().range(-1e25, 1e25) : finite());
    const Handle l = t.in("<loss>", Phase::kLoss).op("mse_loss", {{"self", y}}, bad ? finite(1).inf(1) : finite(1).range(0, 1));
    t.mark(TensorRole::kLoss, "loss", l);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const Handle grad = t.in("net", Phase::kBackward).op("mm_backward", {{"grad_output", l}}, bad ? finite().nan(8) : finite().squares(4));
      t.mark(TensorRole::kBoundaryGradient, path(i), grad);
      const double factor = step == d.step ? d.weights[i] : 1;
      const Numbers w = finite().squares(factor * factor);
      t.in(path(i), Phase::kOptimizer).in_place("add_", weights[i], {{"other", grad}}, bad ? w.nan(8) : w);
      t.mark(TensorRole::kParameter, path(i), weights[i]);
    }
    t.end_step(bad ? std::numeric_limits<double>::infinity() : step == d.step ? d.loss_before : 2);
  }
  return analysis_of(t);
}

TEST(Exploding, is_told_of_one_update_that_makes_most_layers_ten_times_as_large) {
  for (const int step : {0, 3}) {
    const Analysis a = updated_once({.step = step});
    ASSERT_EQ(a.findings.size(), 1u);
    EXPECT_EQ(a.findings[0].cls, FindingClass::kExploding);
    EXPECT_NE(a.findings[0].title.find("the update of step " + std::to_string(step)), std::string::npos) << a.findings[0].title;
  }
}

TEST(Exploding, of_one_update_is_not_told_of_one_layer_nor_where_the_loss_had_jumped_first) {
  const auto cls = [](const Analysis& a) { return a.findings.at(0).cls; };
  EXPECT_EQ(cls(updated_once({.weights = {1e3, 1, 1}})), FindingClass::kOverflow);
  EXPECT_EQ(cls(updated_once({.weights = {5, 5, 5}})), FindingClass::kOverflow);
  EXPECT_EQ(cls(updated_once({.loss_before = 1e6, .step = 3})), FindingClass::kOverflow);
}

}  // namespace
}  // namespace nanhunt
