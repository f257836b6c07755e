// SPDX-License-Identifier: Apache-2.0
// Infinities written on purpose must not absolve an op that makes bad numbers of its own, nor be blamed for them.
#include <gtest/gtest.h>

#include <cmath>
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
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, exp_of_a_mask_that_stays_finite_is_silent) {
  TraceBuilder t;
  const Handle e = t.op("exp", {{"self", masked(t, -kInf)}}, finite(16).as(DType::kF16).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "clean\n");
  EXPECT_EQ(a.timeline.at(0).bad_ops, 0u);  // the mask itself is no event of the timeline
}

TEST(Masks, a_mask_given_with_the_batch_is_not_blamed_for_exp) {
  TraceBuilder t;
  const Handle mask = t.value(finite(16).neg_inf(6));
  t.mark(TensorRole::kBatch, "mask", mask);
  const Handle s = t.value(finite(16).as(DType::kF16).range(-1, 13));
  const Handle scores =
      t.in("attn").op("add", {{"self", s}, {"other", mask}}, finite(16).as(DType::kF16).range(-1, 13).neg_inf(6));
  const Handle e = t.op("exp", {{"self", scores}}, finite(16).as(DType::kF16).inf(2).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1).inf(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, the_op_that_turns_a_fully_masked_row_of_a_buffer_into_nan_is_the_origin) {
  // given a hand-written softmax over a row that the mask leaves nothing of: -Inf - -Inf
  TraceBuilder t;
  const Handle mask = t.value(finite(16).neg_inf(6));
  t.mark(TensorRole::kBuffer, "mask", mask);
  const Handle top = t.in("attn").op("amax", {{"self", mask}}, finite(4).neg_inf(1));
  const Handle shifted = t.op("sub", {{"self", mask}, {"other", top}}, finite(16).nan(4).neg_inf(2));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", shifted}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "invalid | sub | attn | forward | step 0 | transform | observed\n");
}

TEST(Masks, a_mask_of_which_the_constant_was_written_over_before_it_was_read_is_still_written_on_purpose) {
  // Given full(-Inf) of which zeros are written over a part, twice, before anything reads it, and softmax of the rest
  for (const double constant : {-kInf, -1.0}) {
    TraceBuilder t;
    Handle mask = t.in("attn").op("full", {}, finite(16).unread(), {{"fill_value", constant}});
    const Handle at = t.value(finite(16)), zero = t.value(finite(1).unread());
    const std::vector<In> others = {{"indices", at, ArgRole::kIndex}, {"values", zero}};
    t.in_place("index_put_", mask, others, finite(16).unread());
    t.in_place("index_put_", mask, others, finite(16).neg_inf(6));
    const Handle scores = t.op("add", {{"self", t.value(finite(16))}, {"other", mask}}, finite(16).neg_inf(6));
    const Handle p = t.op("softmax", {{"self", scores}}, finite(16).nan(4));
    t.in("<loss>", Phase::kLoss);
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
    t.end_step();
    // when it is judged, then the softmax is the origin, unless the constant was finite.
    const std::string said = table(analysis_of(t));
    EXPECT_EQ(said.starts_with("invalid | softmax | attn | forward | step 0"), constant == -kInf) << said;
  }
}

TEST(Masks, a_finite_mask_constant_beyond_the_format_is_an_overflow) {
  // given masked_fill(-1e9) in fp16, which stores -Inf, and a row of nothing else
  TraceBuilder t;
  const Handle p = t.op("softmax", {{"self", masked(t, -1e9)}}, finite(16).as(DType::kF16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
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
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", w}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "invalid | sqrt | act | forward | step 0 | appear | observed\n");
}

// Rewards of which some are marked as NaN, centred and divided by a spread that may be NaN of itself; marked ones are
// selected away by isnan().
std::string marked_rewards(bool single, bool asked) {
  TraceBuilder t;
  t.in("<loss>", Phase::kLoss).called_from("train.py:3");
  const Handle hidden = t.value(finite(8).as(DType::kBool));
  const Handle reward = t.op("masked_fill", {{"self", t.value(finite(8))}, {"mask", hidden, ArgRole::kMask}},
                             finite(8).nan(3), {{"value", std::nan("")}});
  t.called_from("train.py:9");
  const Handle known = t.op("isnan", {{"self", reward}}, finite(8).as(DType::kBool));
  const Handle count = t.value(finite(1).zeros(single ? 1 : 0));
  const Handle sum = t.op("nansum", {{"self", reward}}, finite(1).zeros(single ? 1 : 0));
  const Handle spread = t.op("div", {{"self", sum}, {"other", count}}, finite(1).nan(single ? 1 : 0));
  const Handle all = t.op("div", {{"self", reward}, {"other", spread}}, finite(8).nan(single ? 8 : 3));
  const Handle mask = asked ? known : t.value(finite(8).as(DType::kBool));
  const Handle left = t.op("where", {{"condition", mask, ArgRole::kMask}, {"self", t.value(finite(1))}, {"other", all}},
                           finite(8).nan(single ? 5 : 0));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", left}}, finite(1).nan(single ? 1 : 0)));
  t.end_step();
  const Analysis a = analysis_of(t);
  return a.findings.empty() ? "" : *a.findings[0].place.op + " at " + a.findings[0].call_site;
}

TEST(Masks, nan_that_is_asked_about_and_selected_away_is_not_blamed_for_what_is_left) {
  EXPECT_EQ(marked_rewards(true, true), "div at train.py:9");
  EXPECT_EQ(marked_rewards(true, false), "masked_fill at train.py:3");
  EXPECT_EQ(marked_rewards(false, true), "");
}

// The loss of a softmax over `scores` with a row of nothing but -Inf.
void lose_by_softmax(TraceBuilder& t, const Handle& scores) {
  const Handle p = t.in("attn").op("softmax", {{"self", scores}}, finite(16).as(DType::kF16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
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

TEST(Masks, a_number_that_scatter_writes_is_a_mask_and_numbers_that_it_copies_are_their_makers) {
  // Given scatter(-Inf), or scatter of numbers that an overflow made infinite
  for (const bool number : {true, false}) {
    TraceBuilder t;
    const Numbers half = finite(16).as(DType::kF16).range(-1, 13);
    const Handle at = t.value(finite(6).as(DType::kI64));
    const Handle e = t.in("attn").op("exp", {{"self", t.value(half)}}, number ? half : half.inf(6));
    std::vector<In> inputs = {{"self", t.value(half)}, {"index", at, ArgRole::kIndex}};
    if (!number) inputs.push_back({"src", e});
    const Handle scores = t.op("scatter", inputs, number ? half.neg_inf(6) : half.inf(6),
                               number ? Scalars{{"value", -kInf}} : Scalars{});
    lose_by_softmax(t, scores);
    // when softmax makes NaN of it, then that is the origin where the number was the program's own.
    EXPECT_EQ(table(analysis_of(t)),
              number ? kSoftmaxIsTheOrigin : "overflow | exp | attn | forward | step 0 | appear | observed\n");
  }
}

TEST(Masks, a_number_put_into_scores_through_a_view_stays_a_mask_in_what_is_read_of_them_later) {
  // Given x[0, i] = -Inf; out = full_like(x, -Inf); out[:, j] = x[:, j], with nothing read between; or x of an overflow
  for (const bool number : {true, false}) {
    TraceBuilder t;
    const Numbers half = finite(16).as(DType::kF16).range(-1, 13), row = finite(8).as(DType::kF16);
    const Handle x = t.in("attn").op("exp", {{"self", t.value(half)}}, number ? half : half.inf(2));
    Handle first = t.view("select", x, row.unread());
    const Handle at = t.value(finite(6).as(DType::kI64));
    const Handle minus_inf = t.value(finite(1).as(DType::kF16).shape({}).neg_inf(1));
    t.in_place("index_put_", first, {{"indices", at, ArgRole::kIndex}, {"values", minus_inf}}, row.neg_inf(6));
    const Handle whole = t.seen_as(first, half.unread(), x.id);
    Handle out = t.op("full_like", {{"self", whole}}, half.unread(), {{"fill_value", -kInf}});
    const Handle some = t.op("index", {{"self", whole}, {"indices", at, ArgRole::kIndex}},
                             number ? row.neg_inf(8) : row.inf(2).neg_inf(6));
    t.in_place("index_put_", out, {{"indices", at, ArgRole::kIndex}, {"values", some}},
               number ? half.neg_inf(16) : half.inf(2).neg_inf(14));
    lose_by_softmax(t, out);
    // when softmax makes NaN of it, then that is the origin, unless something computed an infinity.
    EXPECT_EQ(table(analysis_of(t)).starts_with("invalid | softmax | attn | forward | step 0"), number)
        << table(analysis_of(t));
  }
}

TEST(Masks, a_mask_that_is_broadcast_onto_a_masked_tensor_is_no_origin) {
  // given one row of padding added to every row of a causal mask
  TraceBuilder t;
  const Handle padding = t.value(finite(4).neg_inf(2));
  t.mark(TensorRole::kBatch, "padding", padding);
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
  t.mark(TensorRole::kBatch, "inputs", x);
  const Handle w = t.value(finite(16).shape({4, 4}));
  const Handle y = t.in("fc1").op("mm", {{"self", x}, {"mat2", w}}, finite(16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", y}}, finite(1).nan(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "bad_input | <batch> | - | data | step 0 | unknown | observed\n");
}

TEST(Masks, plus_infinities_of_the_batch_are_no_mask_for_softmax) {
  TraceBuilder t;
  const Handle x = t.value(finite(16).inf(2));
  t.mark(TensorRole::kBatch, "inputs", x);
  lose_by_softmax(t, x);
  EXPECT_EQ(table(analysis_of(t)), "bad_input | <batch> | - | data | step 0 | unknown | observed\n");
}

TEST(Masks, exp2_that_overflows_beside_a_mask_is_the_origin_and_the_limit_is_its_own) {
  TraceBuilder t;
  const Handle s = t.value(finite(16).as(DType::kF16).range(-1, 20).neg_inf(6));
  t.mark(TensorRole::kBuffer, "mask", s);
  const Handle e = t.in("attn").op("exp2", {{"self", s}}, finite(16).as(DType::kF16).inf(2).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", e}}, finite(1).inf(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp2 | attn | forward | step 0 | appear | observed\n");
  bool said = false;
  for (const std::string& line : a.findings.at(0).evidence) said = said || line == "exp2 passes 65504 at 16.";
  EXPECT_TRUE(said);
}

TEST(Masks, where_is_not_the_origin_of_badness_of_a_kind_that_was_not_counted) {
  TraceBuilder t;
  const Handle e = t.in("act").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  const Handle c = t.value(finite());
  const Handle w = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", e}, {"other", t.value(finite())}},
                        finite().inf(1).uncounted());
  t.mark(TensorRole::kLoss, "loss", w);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | act | forward | step 0 | appear | observed\n");
}

TEST(Masks, zero_times_an_infinite_constant_is_invalid) {
  // given (1 - mask) * -Inf, which is NaN wherever nothing is masked
  TraceBuilder t;
  const Handle m = t.value(finite(16).zeros(10).range(0, 1));
  const Handle b = t.in("attn").op("mul", {{"self", m}}, finite(16).nan(10).neg_inf(6), {{"other", -kInf}});
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", b}}, finite(1).nan(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "invalid | mul | attn | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "finite-mask");
}

TEST(Masks, an_infinite_constant_of_no_mask_is_what_to_make_finite) {
  // given a factor of norms that are not 0 and 1 alone
  TraceBuilder t;
  const Handle m = t.value(finite(16).zeros(1).range(0, 0.3));
  const Handle b = t.in("", Phase::kClip).op("mul", {{"self", m}}, finite(16).nan(1).inf(15), {{"other", kInf}});
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", b);
  t.end_step();
  EXPECT_EQ(analysis_of(t).findings.at(0).advice.at(0).id, "finite-constant");
}

// -Inf - (-Inf) of numbers that full wrote, past `way`; a buffer: of numbers that were there.
Finding difference_of_infinities(const std::string& way) {
  TraceBuilder t;
  const Numbers bad = finite(16).neg_inf(6);
  Handle x = way == "buffer" ? t.value(bad) : t.in("net").op("full", {}, finite(16).neg_inf(16).range(0, 0), {{"fill_value", -kInf}});
  if (way == "buffer") t.mark(TensorRole::kBuffer, "mask", x);
  t.in("net");
  if (way == "logaddexp" || way == "maximum") x = t.op(way, {{"self", x}, {"other", t.value(finite(16))}}, bad);
  if (way == "triu") x = t.op(way, {{"self", x}}, bad);
  if (way == "masked_fill")
    x = t.op(way, {{"self", t.value(finite(16))}, {"mask", t.value(finite(16)), ArgRole::kMask}}, bad, {{"value", -kInf}});
  Handle y = t.op("sub", {{"self", x}, {"other", x}}, finite(16).nan(6));
  if (way == "softmax") y = t.op(way, {{"self", y}}, finite(16).nan(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", y}}, finite(1).nan(1)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Masks, are_spoken_of_where_the_records_show_one) {
  for (const char* way : {"masked_fill", "triu", "buffer", "softmax"}) {
    const Finding f = difference_of_infinities(way);
    EXPECT_EQ(f.title, "sub in net turns infinities of a mask into NaN") << way;
    EXPECT_EQ(f.advice.at(0).id, "finite-mask") << way;
  }
  for (const char* way : {"full", "maximum", "logaddexp"}) {
    const Finding f = difference_of_infinities(way);
    EXPECT_EQ(f.title, "sub in net turns infinities written on purpose into NaN") << way;
    EXPECT_EQ(f.advice.at(0).id, way == std::string("logaddexp") ? "finite-log-zero" : "finite-constant") << way;
  }
}

TEST(Masks, zero_times_a_large_finite_constant_is_silent) {
  TraceBuilder t;
  const Handle m = t.value(finite(16).zeros(10).range(0, 1));
  const Handle b = t.in("attn").op("mul", {{"self", m}}, finite(16).zeros(10).range(-1e4, 0), {{"other", -1e4}});
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", b}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Masks, adding_an_infinite_constant_writes_a_mask_and_is_no_overflow) {
  TraceBuilder t;
  const Handle s = t.value(finite(16).as(DType::kF16));
  lose_by_softmax(t, t.in("attn").op("add", {{"self", s}}, finite(16).as(DType::kF16).neg_inf(16), {{"other", -kInf}}));
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, a_nan_constant_is_told_as_such_whichever_op_brings_it_in) {
  TraceBuilder t;
  const Handle y = t.in("a").op("add", {{"self", t.value(finite())}}, finite().nan(8), {{"other", std::nan("")}});
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "invalid | add | a | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "guard-value");
}

// Scores in which exp may overflow, of which the second half is then masked in place through a view.
Handle mask_half_in_place(TraceBuilder& t, std::int64_t overflown, std::int64_t seen_pos_inf) {
  const Numbers half = finite(16).as(DType::kF16);
  const Handle x = t.value(half.range(-1, overflown > 0 ? 13 : 1));
  const Handle e = t.in("attn").op("exp", {{"self", x}}, half.inf(overflown));
  Handle tail = t.view("slice", e, finite(8).as(DType::kF16));
  t.in_place("fill_", tail, {}, finite(8).as(DType::kF16).neg_inf(8), {{"value", -kInf}});
  return t.seen_as(tail, half.inf(seen_pos_inf).neg_inf(8), tail.id);
}

TEST(Masks, an_overflow_beside_a_mask_written_in_place_is_the_origin) {
  TraceBuilder t;
  lose_by_softmax(t, mask_half_in_place(t, 2, 2));
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, an_overflow_is_remembered_beneath_several_masks_written_in_place) {
  TraceBuilder t;
  const Numbers whole = finite(16).as(DType::kF16), quarter = finite(4).as(DType::kF16);
  const Handle e = t.in("attn").op("exp", {{"self", t.value(whole.range(-1, 13))}}, whole.inf(2));
  Handle tail = t.view("slice", e, quarter);
  for (int i = 0; i < 3; ++i) t.in_place("fill_", tail, {}, quarter.neg_inf(4), {{"value", -kInf}});
  lose_by_softmax(t, t.seen_as(tail, whole.inf(2).neg_inf(4), tail.id));
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, a_mask_written_in_place_over_an_overflow_hides_it) {
  TraceBuilder t;
  lose_by_softmax(t, mask_half_in_place(t, 2, 0));
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

TEST(Masks, a_mask_written_in_place_over_finite_scores_is_no_origin) {
  TraceBuilder t;
  lose_by_softmax(t, mask_half_in_place(t, 0, 0));
  EXPECT_EQ(table(analysis_of(t)), kSoftmaxIsTheOrigin);
}

// Scores that an overflow may have made NaN, to which a mask is added in place through a view that nobody read.
void add_mask_in_place(TraceBuilder& t, std::int64_t overflown) {
  const Numbers scores = finite(16).as(DType::kF16);
  const Handle x = t.value(scores.range(-1, overflown > 0 ? 13 : 1));
  const Handle e = t.in("attn").op("exp", {{"self", x}}, scores.inf(overflown));
  const Handle s = t.op("sub", {{"self", e}, {"other", e}}, scores.nan(overflown));
  const Handle mask = t.op("full", {}, finite(16).as(DType::kF16).neg_inf(6), {{"fill_value", -kInf}});
  Handle seen = t.seen_as(s, scores.unread(), s.id);
  t.in_place("add_", seen, {{"other", mask}}, scores.nan(overflown).neg_inf(6));
  t.in("<loss>", Phase::kLoss);
  const Handle p = t.op("softmax", {{"self", seen}}, scores.nan(overflown));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(overflown > 0 ? 1 : 0)));
  t.end_step();
}

TEST(Masks, a_mask_added_in_place_to_scores_that_were_bad_is_not_blamed_for_them) {
  TraceBuilder t;
  add_mask_in_place(t, 2);
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | attn | forward | step 0 | appear | observed\n");
}

TEST(Masks, a_mask_added_in_place_to_scores_that_were_sound_is_silent) {
  TraceBuilder t;
  add_mask_in_place(t, 0);
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

}  // namespace
}  // namespace nanhunt
