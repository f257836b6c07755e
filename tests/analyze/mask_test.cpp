// SPDX-License-Identifier: Apache-2.0
// Infinities written on purpose must not absolve an op that makes bad numbers of its own, nor be blamed for them.
#include <gtest/gtest.h>

#include <limits>

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

}  // namespace
}  // namespace nanhunt
