// SPDX-License-Identifier: Apache-2.0
// State of an optimizer that was bad, or a negative mean of squares, before an operation that was watched made any.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

struct Loaded {
  bool bad = true;
  bool known_maker = false;  // state is made by an op of this run
  bool grows = false;        // the op adds to it instead of fading it
  std::uint32_t step = 0;
};

// An optimizer's first update of a state that it did not make: exp_avg, or a momentum buffer.
Analysis update_of(const Loaded& l) {
  TraceBuilder t;
  t.step(l.step);
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc.weight", w);
  const Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, finite());
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.in("fc.weight", Phase::kOptimizer);
  Handle m = l.known_maker ? t.op("clone", {{"self", g}}, finite().unread()) : t.value(finite().unread());
  const Numbers after = l.bad ? (l.grows ? finite().inf(1) : finite().nan(1)) : finite();
  if (l.grows) {
    t.in_place("addcmul_", m, {{"tensor1", g}, {"tensor2", g}}, after, {{"value", 1}});
  } else {
    t.in_place("lerp_", m, {{"end", g}}, after, {{"weight", 0.1}});
  }
  t.in_place("add_", w, {{"other", m}}, l.bad ? finite().nan(1) : finite(), {{"alpha", -0.1}});
  t.mark(TensorRole::kParameter, "fc.weight", w);
  t.mark(TensorRole::kState, "fc.weight.exp_avg", m);
  t.end_step();
  return analysis_of(t);
}

TEST(OptimizerState, that_was_loaded_bad_is_named_where_the_optimizer_first_updates_it) {
  const Analysis a = update_of({});
  ASSERT_FALSE(a.findings.empty());
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.cls, FindingClass::kBadState) << table(a);
  EXPECT_EQ(f.title, "The optimizer's state fc.weight.exp_avg was bad when the run began: 1 NaN of 8");
  EXPECT_EQ(f.advice.at(0).id, "sound-state");
  EXPECT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(table(update_of({.bad = false})), "clean\n");
}

// A tensor from outside that is given another format before the first step, and is then updated as state, or read as
// the batch.
Analysis copied_from_outside(bool state) {
  TraceBuilder t;
  const Handle given = t.value(finite(4).as(DType::kF16).inf(4));
  Handle copy = t.in("", Phase::kData).op("_to_copy", {{"self", given}}, finite(4).inf(4));
  if (state) {
    t.in("fc", Phase::kOptimizer).in_place("mul_", copy, {}, finite(4).inf(4), {{"other", 0.999}});
    t.mark(TensorRole::kState, "fc.bias.exp_avg_sq", copy);
  } else {
    t.mark(TensorRole::kBatch, "x", copy);
    t.in("fc", Phase::kForward);
    t.mark(TensorRole::kLoss, "loss", t.op("mul", {{"self", copy}, {"other", t.value(finite(4))}}, finite(4).inf(4)));
  }
  t.end_step();
  return analysis_of(t);
}

TEST(OptimizerState, that_was_given_another_format_when_it_was_loaded_is_no_sample_and_a_sample_is_no_state) {
  const Analysis a = copied_from_outside(true);
  ASSERT_EQ(a.findings.size(), 1U) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kBadState) << table(a);
  EXPECT_EQ(a.findings[0].title, "What was loaded into the optimizer state fc.bias.exp_avg_sq was bad: 4 Inf of 4");
  const Analysis b = copied_from_outside(false);
  ASSERT_EQ(b.findings.size(), 1U) << table(b);
  EXPECT_EQ(b.findings[0].cls, FindingClass::kBadInput) << table(b);
}

TEST(OptimizerState, of_a_later_step_is_said_to_be_bad_before_that_step) {
  const Analysis a = update_of({.step = 7});
  ASSERT_FALSE(a.findings.empty());
  EXPECT_NE(a.findings[0].title.find("was bad before step 7"), std::string::npos) << a.findings[0].title;
  EXPECT_EQ(a.findings[0].confidence, Confidence::kInferred);
}

TEST(OptimizerState, is_not_blamed_where_an_operation_made_it_or_the_update_itself_can_pass_the_format) {
  for (const Loaded& l : {Loaded{.known_maker = true}, Loaded{.grows = true}}) {
    const Analysis a = update_of(l);
    ASSERT_FALSE(a.findings.empty());
    EXPECT_NE(a.findings[0].cls, FindingClass::kBadState) << table(a);
  }
}

// A second moment that is negative where its root is taken. `difference`: the optimizer's own formula can be negative.
Analysis root_of(bool negative, bool difference = false) {
  TraceBuilder t;
  const Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, finite());
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.in("fc.weight", Phase::kOptimizer);
  Handle v = t.value(finite().unread());
  const Numbers moment = negative ? finite().range(-0.01, 1) : finite().range(0.01, 1);
  t.in_place("mul_", v, {}, moment, {{"other", 0.999}});
  if (difference) {
    t.in_place("addcmul_", v, {{"tensor1", g}, {"tensor2", t.value(finite())}}, moment, {{"value", -1}});
  } else {
    t.in_place("addcmul_", v, {{"tensor1", g}, {"tensor2", g}}, moment, {{"value", 0.001}});
  }
  const Handle corrected = t.op("div", {{"self", v}}, moment, {{"other", 0.5}});
  const Handle root = t.op("sqrt", {{"self", corrected}}, negative ? finite().nan(1) : finite());
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc.weight", w);
  t.in_place("addcdiv_", w, {{"tensor1", g}, {"tensor2", root}}, negative ? finite().nan(1) : finite(),
             {{"value", -1}});
  t.mark(TensorRole::kParameter, "fc.weight", w);
  t.mark(TensorRole::kState, "fc.weight.exp_avg_sq", v);
  t.end_step();
  return analysis_of(t);
}

TEST(OptimizerState, that_is_a_negative_mean_of_squares_is_named_and_nobody_is_sent_to_clamp_a_root_in_an_optimizer) {
  const Analysis a = root_of(true);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kBadState) << table(a);
  EXPECT_NE(a.findings[0].title.find("mean of squares in the optimizer's state of fc.weight was negative when"),
            std::string::npos)
      << a.findings[0].title;
  EXPECT_EQ(a.findings[0].advice.at(0).id, "sound-state");
  EXPECT_EQ(table(root_of(false)), "clean\n");
}

TEST(OptimizerState, is_not_blamed_for_the_root_of_a_difference_that_the_optimizer_takes) {
  const Analysis a = root_of(true, /*difference=*/true);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kInvalid) << table(a);
}

// A fused optimizer updates parameter and state in one operation.
TEST(OptimizerState, that_was_loaded_bad_or_negative_is_named_of_a_fused_optimizer_too) {
  for (const char* bad : {"exp_avg", "exp_avg_sq"}) {
    const bool squares = std::string(bad) == "exp_avg_sq";
    TraceBuilder t;
    Handle w = t.value(finite());
    t.mark(TensorRole::kParameter, "fc.weight", w);
    const Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, finite());
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    t.in("fc.weight", Phase::kOptimizer);
    Handle m = t.value(finite().unread()), v = t.value(finite().unread());
    t.update("_fused_adam_", {{"grad", g}},
             {{"self", &w, finite().nan(1)},
              {"exp_avg", &m, squares ? finite() : finite().nan(1)},
              {"exp_avg_sq", &v, squares ? finite().range(-0.01, 1) : finite().range(0.01, 1)}});
    t.mark(TensorRole::kParameter, "fc.weight", w);
    t.end_step();
    const Analysis a = analysis_of(t);
    ASSERT_FALSE(a.findings.empty());
    EXPECT_EQ(a.findings[0].cls, FindingClass::kBadState) << bad << "\n" << table(a);
    EXPECT_EQ(a.findings[0].advice.at(0).id, "sound-state");
  }
}

}  // namespace
}  // namespace nanhunt
