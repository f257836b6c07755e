// SPDX-License-Identifier: Apache-2.0
// Infinities written on purpose must not absolve an op that makes bad numbers of its own, nor be blamed for them.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

constexpr double kInf = std::numeric_limits<double>::infinity();

Handle masked(TraceBuilder& t, double value) {
  const Handle s = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle m = t.value(finite(16));
  return t.in("attn").op("masked_fill", {{"self", s}, {"mask", m, ArgRole::kMask}},
                         finite(16).as(DType::kF16).range(-1, 13).neg_inf(6), {{"value", value}});
}

TEST(Masks, exp_that_overflows_beside_a_mask_is_the_origin) {
  // given a hand-written masked softmax: exp(-Inf) is 0, so its +Inf is its own
  TraceBuilder t;
  const Handle e = t.op("exp", {{"self", masked(t, -kInf)}}, finite(16).as(DType::kF16).inf(2).zeros(6));
  const Handle total = t.op("sum", {{"self", e}}, finite(4).as(DType::kF16).inf(2));
  const Handle p = t.op("div", {{"self", e}, {"other", total}}, finite(16).as(DType::kF16).nan(2));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, exp_of_a_mask_that_stays_finite_is_silent) {
  TraceBuilder t;
  const Handle e = t.op("exp", {{"self", masked(t, -kInf)}}, finite(16).as(DType::kF16).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Masks, a_mask_given_with_the_batch_is_not_blamed_for_exp) {
  TraceBuilder t;
  const Handle mask = t.value(finite(16).neg_inf(6));
  t.mark(MarkKind::kBatch, "mask", mask);
  const Handle s = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle scores =
      t.in("attn").op("add", {{"self", s}, {"other", mask}}, finite(16).as(DType::kF16).range(-1, 13).neg_inf(6));
  const Handle e = t.op("exp", {{"self", scores}}, finite(16).as(DType::kF16).inf(2).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1).inf(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, the_op_that_turns_a_fully_masked_row_of_a_buffer_into_nan_is_the_origin) {
  // given a hand-written softmax over a row that the mask leaves nothing of: -Inf - -Inf
  TraceBuilder t;
  const Handle mask = t.value(finite(16).neg_inf(6));
  t.mark(MarkKind::kBuffer, "mask", mask);
  const Handle top = t.in("attn").op("amax", {{"self", mask}}, finite(4).neg_inf(1));
  const Handle shifted = t.op("sub", {{"self", mask}, {"other", top}}, finite(16).nan(4).neg_inf(2));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", shifted}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "invalid | sub | attn | forward | step 0 | transform | observed\n");
}

TEST(Masks, a_finite_mask_constant_beyond_the_format_is_an_overflow) {
  // given masked_fill(-1e9) in fp16, which stores -Inf, and a row of nothing else
  TraceBuilder t;
  const Handle p = t.op("softmax", {{"self", masked(t, -1e9)}}, finite(16).as(DType::kF16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(a.findings[0].place.op, "masked_fill");
}

TEST(Masks, the_branch_that_where_did_not_select_is_not_the_origin) {
  // given where(c, log(x), sqrt(y)): the -Inf of log is not selected, the NaN of sqrt is
  TraceBuilder t;
  const Handle x = t.value(finite().zeros(1).range(0, 1));
  const Handle y = t.value(finite().range(-1, 1));
  const Handle c = t.value(finite());
  const Handle l = t.in("act").op("log", {{"self", x}}, finite().neg_inf(1));
  const Handle s = t.op("sqrt", {{"self", y}}, finite().nan(2));
  const Handle w = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", l}, {"other", s}}, finite().nan(2));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", w}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "invalid | sqrt | act | forward | step 0 | appear | observed\n");
}

// The loss of a softmax over `scores` with a row of nothing but -Inf.
void lose_by_softmax(TraceBuilder& t, const Handle& scores) {
  const Handle p = t.in("attn").op("softmax", {{"self", scores}}, finite(16).as(DType::kF16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
  t.end_step();
}
const char* const kSoftmaxIsTheOrigin = "invalid | softmax | attn | forward | step 0 | transform | observed\n";

TEST(Masks, a_second_mask_over_a_masked_tensor_is_no_overflow) {
  // given a causal mask and then a padding mask, which together leave nothing of a row
  TraceBuilder t;
  const Handle once = masked(t, -kInf);
  const Handle m = t.value(finite(16));
  const Handle twice = t.op("masked_fill", {{"self", once}, {"mask", m, ArgRole::kMask}},
                            finite(16).as(DType::kF16).neg_inf(10), {{"value", -kInf}});
  lose_by_softmax(t, twice);
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, a_second_mask_whose_constant_the_format_cannot_hold_is_an_overflow) {
  TraceBuilder t;
  const Handle once = masked(t, -kInf);
  const Handle m = t.value(finite(16));
  const Handle twice = t.op("masked_fill", {{"self", once}, {"mask", m, ArgRole::kMask}},
                            finite(16).as(DType::kF16).neg_inf(10), {{"value", -1e9}});
  lose_by_softmax(t, twice);
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(a.findings[0].place.op, "masked_fill");
}

TEST(Masks, where_with_an_infinite_scalar_over_a_masked_tensor_is_no_origin) {
  TraceBuilder t;
  const Handle once = masked(t, -kInf);
  const Handle c = t.value(finite(16));
  const Handle inf = t.op("scalar_tensor", {}, finite(1).as(DType::kF16).neg_inf(1), {{"s", -kInf}});
  const Handle twice = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", once}, {"other", inf}},
                            finite(16).as(DType::kF16).neg_inf(10));
  lose_by_softmax(t, twice);
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, a_mask_that_is_broadcast_onto_a_masked_tensor_is_no_origin) {
  // given one row of padding added to every row of a causal mask
  TraceBuilder t;
  const Handle padding = t.value(finite(4).neg_inf(2));
  t.mark(MarkKind::kBatch, "padding", padding);
  const Handle scores = t.op("add", {{"self", masked(t, -kInf)}, {"other", padding}},
                             finite(16).as(DType::kF16).range(-1, 13).neg_inf(11));
  lose_by_softmax(t, scores);
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, where_hides_an_overflow_and_hands_on_a_mask) {
  // given where(c, exp(x), -Inf) that selects no overflown element
  TraceBuilder t;
  const Handle x = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle e = t.in("attn").op("exp", {{"self", x}}, finite(16).as(DType::kF16).inf(2));
  const Handle inf = t.op("full", {}, finite(16).as(DType::kF16).neg_inf(16), {{"fill_value", -kInf}});
  const Handle c = t.value(finite(16));
  const Handle scores = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", e}, {"other", inf}},
                             finite(16).as(DType::kF16).neg_inf(6));
  lose_by_softmax(t, scores);
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, masked_fill_hides_an_overflow_under_the_mask) {
  TraceBuilder t;
  const Handle x = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle e = t.in("attn").op("exp", {{"self", x}}, finite(16).as(DType::kF16).inf(2));
  const Handle m = t.value(finite(16));
  const Handle scores = t.op("masked_fill", {{"self", e}, {"mask", m, ArgRole::kMask}},
                             finite(16).as(DType::kF16).neg_inf(6), {{"value", -kInf}});
  lose_by_softmax(t, scores);
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, an_overflow_that_masked_fill_left_in_place_is_the_origin) {
  TraceBuilder t;
  const Handle x = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle e = t.in("attn").op("exp", {{"self", x}}, finite(16).as(DType::kF16).inf(2));
  const Handle m = t.value(finite(16));
  const Handle scores = t.op("masked_fill", {{"self", e}, {"mask", m, ArgRole::kMask}},
                             finite(16).as(DType::kF16).inf(1).neg_inf(6), {{"value", -kInf}});
  lose_by_softmax(t, scores);
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, minus_infinities_of_the_batch_that_are_multiplied_are_no_mask) {
  // given log-scaled features of silence, and a linear layer
  TraceBuilder t;
  const Handle x = t.value(finite(16).shape({4, 4}).neg_inf(2));
  t.mark(MarkKind::kBatch, "inputs", x);
  const Handle w = t.value(finite(16).shape({4, 4}));
  const Handle y = t.in("fc1").op("mm", {{"self", x}, {"mat2", w}}, finite(16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", y}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "bad_input | <batch> | - | data | step 0 | unknown | observed\n");
}

TEST(Masks, plus_infinities_of_the_batch_are_no_mask_for_softmax) {
  TraceBuilder t;
  const Handle x = t.value(finite(16).inf(2));
  t.mark(MarkKind::kBatch, "inputs", x);
  lose_by_softmax(t, x);
  EXPECT_EQ(table(analysis_of(t)), "bad_input | <batch> | - | data | step 0 | unknown | observed\n");
}

TEST(Masks, exp2_that_overflows_beside_a_mask_is_the_origin_and_the_limit_is_its_own) {
  TraceBuilder t;
  const Handle s = t.value(finite(16).as(DType::kF16).range(-1, 20).neg_inf(6));
  t.mark(MarkKind::kBuffer, "mask", s);
  const Handle e = t.in("attn").op("exp2", {{"self", s}}, finite(16).as(DType::kF16).inf(2).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(MarkKind::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1).inf(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp2 | attn | forward | step 0 | appear | observed\n");
  bool said = false;
  for (const std::string& line : a.findings.at(0).evidence) said = said || line == "exp2 passes 65504 at 16.";
  EXPECT_TRUE(said);
}

}  // namespace
}  // namespace nanhunt
