// SPDX-License-Identifier: Apache-2.0
// Which op is the origin: appear, transform, propagate, disappear, through views, in-place writes, gaps and time.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

TEST(Graph, the_op_with_clean_inputs_and_a_bad_output_is_the_origin_not_those_that_carry_it_on) {
  TraceBuilder t;
  // given an exp that overflows, and two ops that only carry the Inf to the loss
  const Handle x = t.value(finite().range(-1, 100));
  const Handle e = t.in("fc1").op("exp", {{"self", x}}, finite().inf(1));
  const Handle m = t.in("fc2").op("mul", {{"self", e}}, finite().inf(1), {{"other", 2}});
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", m}}, finite(1).inf(1));
  t.mark(TensorRole::kLoss, "loss", l);
  t.end_step(std::numeric_limits<double>::infinity());
  // then
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | fc1 | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.verdict.origin, "F1");
  EXPECT_EQ(a.verdict.headline, a.findings[0].title);
  EXPECT_EQ(a.findings[0].sinks, std::vector<std::string>{"loss"});
}

TEST(Graph, a_clean_run_is_clean) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", x}}, finite(1));
  t.mark(TensorRole::kLoss, "loss", l);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Graph, nothing_recorded_is_inconclusive) {
  const Analysis a = analysis_of(TraceBuilder{});
  EXPECT_EQ(a.verdict.status, VerdictStatus::kInconclusive);
  EXPECT_FALSE(a.verdict.headline.empty());
  EXPECT_FALSE(a.verdict.origin.has_value());
}

TEST(Graph, badness_that_disappears_and_reaches_no_sink_is_no_fault) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(-1, 100));
  const Handle c = t.value(finite());
  const Handle e = t.in("act").op("exp", {{"self", x}}, finite().inf(1));
  const Handle w = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", e}, {"other", x}}, finite());
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", w}}, finite(1));
  t.mark(TensorRole::kLoss, "loss", l);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Graph, an_inf_of_the_unselected_branch_that_returns_in_backward_is_the_origin_of_that_nan) {
  TraceBuilder t;
  // given where(x > 0, x, exp(x)): the Inf is not selected in forward
  const Handle x = t.value(finite().range(-1, 100));
  const Handle c = t.value(finite());
  const Handle e = t.in("act").op("exp", {{"self", x}}, finite().inf(1));
  const Handle w = t.op("where", {{"condition", c, ArgRole::kMask}, {"self", x}, {"other", e}}, finite());
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", w}}, finite(1));
  t.mark(TensorRole::kLoss, "loss", l);
  // and in backward 0 * Inf
  const Handle g =
      t.in("act", Phase::kBackward).op("where_backward", {{"grad_output", t.value(finite())}}, finite().zeros(3));
  const Handle ge = t.op("exp_backward", {{"grad_output", g}, {"result", e, ArgRole::kSaved}}, finite().nan(1));
  t.mark(TensorRole::kBoundaryGradient, "fc1.weight", ge);
  t.end_step();
  // then exp is named, in forward, and both firsts are told
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | act | forward | step 0 | appear | observed\n");
  ASSERT_TRUE(a.findings[0].first_inf && a.findings[0].first_nan);
  EXPECT_EQ(a.findings[0].first_inf->op, "exp");
  EXPECT_EQ(a.findings[0].first_nan->op, "exp_backward");
  EXPECT_EQ(a.findings[0].first_nan->phase, Phase::kBackward);
}

TEST(Graph, softmax_of_a_fully_masked_row_is_the_origin_not_the_mask) {
  TraceBuilder t;
  const Handle s = t.value(finite(16));
  const Handle m = t.value(finite(16));
  const double inf = std::numeric_limits<double>::infinity();
  const Handle f = t.in("attn").op("masked_fill", {{"self", s}, {"mask", m, ArgRole::kMask}}, finite(16).neg_inf(6),
                                   {{"value", -inf}});
  const Handle p = t.op("softmax", {{"self", f}}, finite(16).nan(4));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1).nan(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "invalid | softmax | attn | forward | step 0 | transform | observed\n");
  EXPECT_EQ(a.findings[0].advice.at(0).id, "keep-one-key");
}

TEST(Graph, a_deliberate_infinity_that_softmax_absorbs_is_benign) {
  TraceBuilder t;
  const Handle s = t.value(finite(16));
  const Handle m = t.value(finite(16));
  const Handle f = t.in("attn").op("masked_fill", {{"self", s}, {"mask", m, ArgRole::kMask}}, finite(16).neg_inf(6),
                                   {{"value", -std::numeric_limits<double>::infinity()}});
  const Handle v = t.view("reshape", f, finite(16).neg_inf(6));
  const Handle p = t.op("softmax", {{"self", v}}, finite(16).zeros(6));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Graph, a_mask_registered_as_a_buffer_is_not_bad_state_unless_a_row_is_fully_masked) {
  for (const bool full_row : {false, true}) {
    TraceBuilder t;
    const Handle mask = t.value(finite(16).neg_inf(6));
    t.mark(TensorRole::kBuffer, "attn.causal", mask);
    const Handle scores = t.value(finite(16));
    const Handle f = t.in("attn").op("add", {{"self", scores}, {"other", mask}}, finite(16).neg_inf(6));
    const Handle p = t.op("softmax", {{"self", f}}, full_row ? finite(16).nan(4) : finite(16).zeros(6));
    t.in("<loss>", Phase::kLoss);
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, full_row ? finite(1).nan(1) : finite(1)));
    t.mark(TensorRole::kBuffer, "attn.causal", mask);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)),
              full_row ? "invalid | softmax | attn | forward | step 0 | transform | observed\n" : "clean\n");
  }
}

TEST(Graph, an_inf_of_arithmetic_that_transforms_later_keeps_its_origin) {
  TraceBuilder t;
  const Handle x = t.value(finite(64).as(DType::kF16).range(-300, 300).shape({8, 8}));
  const Handle w = t.value(finite(64).as(DType::kF16).range(-300, 300).shape({8, 8}));
  const Handle h = t.in("fc2").op("mm", {{"self", x}, {"mat2", w}}, finite(64).as(DType::kF16).inf(2));
  const Handle n = t.in("norm").op("sub", {{"self", h}, {"other", h}}, finite(64).as(DType::kF16).nan(2));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", n}}, finite(1).nan(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | mm | fc2 | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[0].first_nan->op, "sub");
  // and the transform is in the chain
  const auto& nodes = a.findings[0].chain.nodes;
  EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(),
                          [](const ChainNode& n2) { return n2.lifecycle == Lifecycle::kTransform; }));
}

TEST(Graph, arithmetic_badness_beside_a_deliberate_one_takes_the_blame) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(0, 100));
  const Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
  const Handle f =
      t.in("m").op("full", {}, finite().neg_inf(2), {{"fill_value", -std::numeric_limits<double>::infinity()}});
  const Handle s = t.in("s").op("add", {{"self", e}, {"other", f}}, finite().nan(1).neg_inf(1).inf(0));
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", s}}, finite(1).nan(1)));
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | a | forward | step 0 | appear | observed\n");
}

TEST(Graph, two_independent_origins_are_two_findings_in_order) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(-1, 100));
  const Handle z = t.value(finite().zeros(2).range(0, 1));
  const Handle a = t.in("left").op("exp", {{"self", x}}, finite().inf(1));
  const Handle b = t.in("right").op("log", {{"self", z}}, finite().neg_inf(2));
  const Handle s = t.in("<loss>", Phase::kLoss).op("add", {{"self", b}, {"other", a}}, finite().inf(1).neg_inf(2));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", s}}, finite(1).nan(1)));
  t.end_step();
  const Analysis analysis = analysis_of(t);
  EXPECT_EQ(table(analysis),
            "overflow | exp | left | forward | step 0 | appear | observed\n"
            "divide_by_zero | log | right | forward | step 0 | appear | observed\n");
  EXPECT_EQ(analysis.findings[0].id, "F1");
  EXPECT_EQ(analysis.findings[1].id, "F2");
}

TEST(Graph, badness_travels_through_views_and_in_place_writes) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(-1, 100));
  Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
  const Handle v = t.in("b").view("t", e, finite().inf(1));
  Handle acc = t.value(finite());
  t.in_place("add_", acc, {{"other", v}}, finite().inf(1), {{"alpha", 1}});
  t.in_place("mul_", acc, {}, finite().inf(1), {{"other", 2}});
  // and through a view that no op made
  const Handle seen = t.seen_as(acc, finite(4).inf(1), acc.id);
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", seen}}, finite(1).inf(1)));
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | a | forward | step 0 | appear | observed\n");
}

TEST(Graph, a_partial_write_leaves_the_rest_of_a_bad_buffer_bad) {
  TraceBuilder t;
  const Handle x = t.value(finite(8).range(-1, 100));
  Handle cache = t.in("kv").op("exp", {{"self", x}}, finite(8).inf(2));
  // given half of it is overwritten with good numbers
  Handle half = t.in("kv").view("narrow", cache, finite(4));
  const Handle good = t.value(finite(4));
  t.in_place("copy_", half, {{"src", good}}, finite(4));
  // when the whole, at its new version, is read
  const Handle whole = t.seen_as(half, finite(8).inf(2), half.id);
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", whole}}, finite(1).inf(1)));
  // then
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | kv | forward | step 0 | appear | observed\n");
}

// A buffer of NaN that is registered, then written by `op` in the next step, and holds so many of them.
Analysis written_buffer(const std::string& op, std::int64_t at_first, std::int64_t then, bool assigned_anew = false) {
  TraceBuilder t;
  const auto train = [&] {
    t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", t.value(finite())}}, finite(1)));
    t.end_step();
  };
  Handle buffer = t.in("", Phase::kData).op("full", {}, finite().nan(at_first), {{"fill_value", std::nan("")}});
  t.mark(TensorRole::kBuffer, "history", buffer);
  train();
  const In other{"values", t.value(finite(1))};
  t.in("", Phase::kData);
  if (assigned_anew) {
    buffer = t.op(op, {{"tensors", buffer}, other}, finite().nan(then));
  } else {
    t.in_place(op, buffer, {other}, finite().nan(then));
  }
  t.mark(TensorRole::kBuffer, "history", buffer);
  train();
  return analysis_of(t);
}

TEST(Graph, a_buffer_of_nan_that_is_filled_place_by_place_was_not_written_yet) {
  EXPECT_EQ(table(written_buffer("index_put_", 8, 7)), "clean\n");
  EXPECT_EQ(table(written_buffer("index_put_", 8, 8)), "clean\n") << "a mask without an element";
  EXPECT_EQ(table(written_buffer("cat", 8, 8, true)), "clean\n") << "as a queue moves on";
}

TEST(Graph, a_buffer_of_nan_that_arithmetic_writes_as_a_whole_was_used) {
  const std::string fault = "invalid | full | - | data | step 1 | appear | observed\n";
  EXPECT_EQ(table(written_buffer("add_", 8, 8)), fault);
  EXPECT_EQ(table(written_buffer("index_put_", 4, 6)), fault) << "more than at first";
}

TEST(Graph, a_clean_write_to_one_slice_leaves_the_badness_of_the_other) {
  for (const bool over_a : {false, true}) {
    TraceBuilder t;
    const Handle storage = t.value(finite(8));
    // given slice A of a storage that is only ever seen in two halves, written badly
    Handle a = t.seen_as(storage, finite(4), storage.id);
    t.in("a").in_place("exp_", a, {}, finite(4).inf(1));
    // when B, or A again, is written with good numbers
    Handle b = t.seen_as(a, finite(4).at_offset(over_a ? 0 : 4), 0);
    t.in("b").in_place("copy_", b, {{"src", t.value(finite(4))}}, finite(4).at_offset(over_a ? 0 : 4));
    // then what is still bad in A has its origin there
    const Handle left = t.seen_as(b, over_a ? finite(4) : finite(4).inf(1), 0);
    t.in("<loss>", Phase::kLoss);
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", left}}, over_a ? finite(1) : finite(1).inf(1)));
    t.end_step();
    const Analysis found = analysis_of(t);
    if (over_a) {
      EXPECT_EQ(table(found), "clean\n");
    } else {
      ASSERT_EQ(found.findings.size(), 1u);
      EXPECT_EQ(found.findings[0].place.op, "exp_") << table(found);
    }
  }
}

TEST(Graph, two_slices_seen_alone_are_not_taken_for_the_whole) {
  TraceBuilder t;
  const Handle first = t.value(finite(4));
  Handle a = t.seen_as(first, finite(4), 0);
  t.in("a").in_place("exp_", a, {}, finite(4).inf(1));
  Handle b = t.seen_as(a, finite(4).at_offset(4), 0);
  t.in("b").in_place("copy_", b, {{"src", t.value(finite(4))}}, finite(4).at_offset(4));
  const Handle left = t.seen_as(b, finite(4).inf(1), 0);
  t.mark(TensorRole::kLoss, "loss", left);
  t.end_step();
  EXPECT_EQ(analysis_of(t).findings.at(0).place.op, "exp_");
}

TEST(Graph, a_full_overwrite_ends_badness_and_takes_the_blame_for_its_own) {
  TraceBuilder t;
  Handle buffer = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(8));
  t.in_place("fill_", buffer, {}, finite().zeros(8), {{"value", 0}});
  // given a cast that overflows is copied over old bad contents
  Handle half =
      t.in("b").op("log", {{"self", t.value(finite().zeros(8).range(0, 0))}}, finite().as(DType::kF16).neg_inf(8));
  const Handle big = t.value(finite().range(0, 1e6));
  t.in("c").in_place("copy_", half, {{"src", big}}, finite().as(DType::kF16).inf(1));
  t.in("<loss>", Phase::kLoss);
  const Handle sum = t.op("add", {{"self", buffer}, {"other", half}}, finite(1).inf(1));
  t.mark(TensorRole::kLoss, "loss", sum);
  EXPECT_EQ(table(analysis_of(t)), "overflow | copy_ | c | forward | step 0 | appear | observed\n");
}

TEST(Graph, a_freed_storage_takes_its_badness_with_it) {
  TraceBuilder t;
  const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  t.release(e);
  const Handle x = t.value(finite());
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", x}}, finite(1)));
  t.end_step();
  // an op that still names the freed value gets no clean bill for it
  t.mark(TensorRole::kLoss, "loss", t.in("b").op("sum", {{"self", x}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Graph, nan_that_recurs_is_counted_not_repeated) {
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  for (int step = 0; step < 5; ++step) {
    const bool bad = step >= 2;
    const Handle x = t.value(finite());
    const Handle y = t.in("fc1").op("mul", {{"self", x}, {"other", w}}, bad ? finite().nan(8) : finite());
    const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, bad ? finite(1).nan(1) : finite(1));
    t.mark(TensorRole::kLoss, "loss", l);
    t.in("fc1.weight", Phase::kOptimizer);
    const Handle g = t.value(finite());
    const Handle d = t.value(step == 1 ? finite().zeros(3) : finite());
    t.in_place("addcdiv_", w, {{"tensor1", g}, {"tensor2", d}}, step >= 1 ? finite().nan(3) : finite(),
               {{"value", -1e-3}});
    t.mark(TensorRole::kParameter, "fc1.weight", w);
    t.end_step(bad ? std::nan("") : 1.0);
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | addcdiv_ | fc1.weight | optimizer | step 1 | appear | observed\n");
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.occurrence_count, 1u);  // the rest is aftermath
  EXPECT_EQ(f.first_step, 1u);
  EXPECT_EQ(f.last_step, 1u);
  EXPECT_EQ(f.bad_steps.count, 4u);
  EXPECT_EQ(f.bad_steps.anew, 1u);
  EXPECT_EQ(f.bad_steps.unwatched, 0u);
  EXPECT_EQ(f.bad_steps.first, 1u);
  EXPECT_EQ(f.bad_steps.last, 4u);
  EXPECT_EQ(a.findings[0].sinks, std::vector<std::string>{"parameter fc1.weight"});
  EXPECT_EQ(a.timeline.size(), 5u);
  EXPECT_EQ(a.timeline[0].bad_ops, 0u);
  EXPECT_EQ(a.timeline[1].bad_ops, 1u);
  EXPECT_EQ(a.timeline[2].bad_ops, 3u);
}

TEST(Graph, an_input_that_was_not_read_makes_the_conclusion_inferred) {
  TraceBuilder t;
  const Handle x = t.value(finite().unread());
  const Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | a | forward | step 0 | unknown | inferred\n");
  EXPECT_GE(a.coverage.unwatched.size(), 2u);
}

TEST(Graph, what_is_overwritten_through_a_view_that_was_never_read_carries_the_origin_on) {
  TraceBuilder t;
  // given a bad gradient, divided in place through another view of it, by when its old contents are gone
  const Handle x = t.value(finite().range(-1, 100));
  const Handle g = t.in("fc", Phase::kBackward).op("exp", {{"self", x}}, finite().inf(2));
  Handle flat = t.seen_as(g, finite().unread(), 0);
  t.in("fc.weight", Phase::kUnscale).in_place("div_", flat, {}, finite().inf(2));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", flat);
  t.end_step();
  // then
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | fc | backward | step 0 | appear | observed\n");
}

TEST(Graph, what_is_overwritten_through_a_view_of_clean_contents_blames_the_op) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(-1, 10));
  const Handle g = t.in("fc", Phase::kBackward).op("exp", {{"self", x}}, finite());
  Handle flat = t.seen_as(g, finite().unread(), 0);
  const Handle zero = t.value(finite(1).zeros(1).range(0, 0));
  t.in("fc.weight", Phase::kUnscale).in_place("div_", flat, {{"other", zero}}, finite().inf(2));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", flat);
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].place.op, "div_");
}

TEST(Graph, an_unread_value_between_carries_the_origin_on) {
  TraceBuilder t;
  const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  const Handle hidden = t.in("b").op("mul", {{"self", e}}, finite().unread(), {{"other", 2}});
  const Handle y = t.in("c").op("add", {{"self", hidden}}, finite().inf(1), {{"other", 1}});
  t.mark(TensorRole::kLoss, "loss", y);
  EXPECT_EQ(table(analysis_of(t)), "overflow | exp | a | forward | step 0 | appear | observed\n");
}

TEST(Graph, all_of_a_memory_that_nobody_read_carries_on_what_was_written_into_a_part_of_it) {
  const auto found = [](bool bad) {
    TraceBuilder t;
    const Handle root = t.in("a", Phase::kBackward).op("sqrt", {{"self", t.value(finite(4).range(-1, 1))}}, finite(4).nan(bad ? 2 : 0));
    const Handle whole = t.op("zeros", {}, finite(64).zeros(64).range(0, 0));
    Handle part = t.seen_as(whole, finite(4).unread(), whole.id);
    t.in_place("copy_", part, {{"src", root}}, finite(4).nan(bad ? 2 : 0));
    t.in_place("copy_", part, {{"src", t.value(finite(4))}}, finite(4));
    const Handle all = t.seen_as(part, finite(64).unread(), 0);
    const Handle sum = t.in("b", Phase::kBackward).op("index_add", {{"self", t.value(finite(64))}, {"source", all}}, finite(64).nan(2));
    t.mark(TensorRole::kBoundaryGradient, "b.weight", sum);
    return table(analysis_of(t));
  };
  EXPECT_EQ(found(true), "invalid | sqrt | a | backward | step 0 | appear | observed\n");
  EXPECT_NE(found(false).find("index_add"), std::string::npos) << found(false);
}

TEST(Graph, lost_rows_before_the_origin_make_the_conclusion_inferred_and_are_counted) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  t.in("a").op("mul", {{"self", x}}, finite(), {{"other", 2}});
  const Handle lost = t.lost_op();
  const Handle y = t.in("b").op("log", {{"self", lost}}, finite().nan(1));
  t.mark(TensorRole::kLoss, "loss", y);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "unexplained | log | b | forward | step 0 | unknown | inferred\n");
  EXPECT_NE(a.coverage.unwatched[1].find("1 ops whose records are missing"), std::string::npos);
}

TEST(Graph, ops_of_retired_steps_are_told_apart_from_missing_ones) {
  const auto unwatched = [](std::uint64_t lost, std::uint64_t retired) {
    TraceBuilder t;
    t.in("a").op("mul", {}, finite(), {{"other", 2}});
    for (std::uint64_t i = 0; i < lost; ++i) t.lost_op();
    const std::uint64_t next = t.next_seq();
    t.in("b").op("mul", {}, finite(), {{"other", 2}});
    t.end_step();
    TraceHealth health;
    health.clean_end = true;
    health.steps_retired = retired != 0 ? 1 : 0;
    const auto analyzer = Analyzer::make();
    RecordBatch batch = t.batches().front();
    if (retired != 0)
      batch.retired = {{.seq = next, .steps = 1, .anomalies = 0, .ops = retired, .values = 0, .other = 0}};
    analyzer->add(batch);
    std::string lines;
    for (const std::string& line : analyzer->finish({}, health).coverage.unwatched) lines += line + "\n";
    return lines;
  };
  const std::string retired = "1 step retired to keep the trace within its limit, with 3 ops.";
  EXPECT_NE(unwatched(3, 3).find(retired), std::string::npos);
  EXPECT_EQ(unwatched(3, 3).find("missing"), std::string::npos);
  EXPECT_NE(unwatched(5, 3).find(retired), std::string::npos);
  EXPECT_NE(unwatched(5, 3).find("\n2 ops whose records are missing."), std::string::npos);
  EXPECT_NE(unwatched(5, 0).find("\n5 ops whose records are missing."), std::string::npos);
}

TEST(Graph, a_bad_value_whose_op_was_lost_is_told_as_unwatched) {
  TraceBuilder t;
  const Handle x = t.value(finite().nan(1));  // no producer, never said to be anything
  const Handle y = t.in("b").op("mul", {{"self", x}}, finite().nan(1), {{"other", 2}});
  t.mark(TensorRole::kLoss, "loss", y);
  EXPECT_EQ(table(analysis_of(t)), "unexplained | <unwatched> | - | forward | step 0 | unknown | inferred\n");
}

TEST(Graph, a_bad_sample_that_a_loader_puts_into_a_batch_is_bad_input) {
  TraceBuilder t;
  const Handle sample = t.value(finite().nan(1));
  const Handle batch = t.in("", Phase::kData).op("stack", {{"tensors", sample}}, finite(16).nan(1));
  t.mark(TensorRole::kBatch, "input 0", batch);
  const Handle l = t.in("<loss>", Phase::kLoss).op("sum", {{"self", batch}}, finite(1).nan(1));
  t.mark(TensorRole::kLoss, "loss", l);
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kBadInput);
  EXPECT_EQ(a.findings[0].place.op, "<batch>");
  EXPECT_EQ(a.findings[0].place.phase, Phase::kData);
}

TEST(Graph, rows_lost_after_the_origin_do_not_weaken_it) {
  TraceBuilder t;
  const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.drop(10);
  t.lost_op();
  t.op("exp", {{"self", t.value(finite())}}, finite());
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | a | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.coverage.records_dropped, 10u);
}

TEST(Graph, a_parameter_left_bad_by_its_last_op_is_a_sink_even_if_the_run_was_killed_before_it_said_so) {
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  const Handle d = t.value(finite().zeros(1));
  t.in("fc1.weight", Phase::kOptimizer)
      .in_place("addcdiv_", w, {{"tensor1", t.value(finite())}, {"tensor2", d}}, finite().nan(1));
  EXPECT_EQ(table(analysis_of(t)), "divide_by_zero | addcdiv_ | fc1.weight | optimizer | step 0 | appear | observed\n");
}

TEST(Graph, a_parameter_repaired_within_its_step_is_no_sink) {
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.in("fc1.weight", Phase::kOptimizer);
  t.in_place("addcdiv_", w, {{"tensor1", t.value(finite())}, {"tensor2", t.value(finite().zeros(1))}}, finite().nan(1));
  t.in_place("nan_to_num_", w, {}, finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Graph, the_same_fault_at_many_modules_is_one_finding_that_lists_them) {
  TraceBuilder t;
  for (const char* path : {"fc1.weight", "fc1.bias", "fc2.weight"}) {
    Handle w = t.value(finite());
    t.mark(TensorRole::kParameter, path, w);
    t.in(path, Phase::kOptimizer);
    t.in_place("addcdiv_", w, {{"tensor1", t.value(finite())}, {"tensor2", t.value(finite().zeros(2))}},
               finite().nan(2));
    t.mark(TensorRole::kParameter, path, w);
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | addcdiv_ | fc1.weight | optimizer | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[0].also, (std::vector<std::string>{"fc1.bias", "fc2.weight"}));
  EXPECT_EQ(a.findings[0].sinks.size(), 3u);
}

TEST(Graph, a_fault_that_arises_anew_in_later_steps_is_one_finding_however_often) {
  TraceBuilder t;
  for (int step = 0; step < 20; ++step) {
    const bool bad = step >= 3 && step % 2 == 1;
    const Handle x = t.value(finite().range(0, bad ? 100 : 1));
    const Handle e = t.in("fc1").op("exp", {{"self", x}}, bad ? finite().inf(1) : finite());
    t.mark(TensorRole::kLoss, "loss", e);
    t.release(e);
    t.end_step();
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | fc1 | forward | step 3 | appear | observed\n");
  EXPECT_EQ(a.findings[0].occurrence_count, 9u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 9u);
  EXPECT_EQ(a.findings[0].bad_steps.anew, 9u);
  EXPECT_EQ(a.findings[0].first_step, 3u);
  EXPECT_EQ(a.findings[0].last_step, 19u);
}

TEST(Graph, many_ops_of_one_kind_in_one_module_are_one_finding_that_counts_them) {
  TraceBuilder t;
  for (int head = 0; head < 12; ++head) {
    const Handle e = t.in("attn").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", e);
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | attn | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[0].evidence.back(), "11 more such ops in attn in this step.");
}

TEST(Graph, a_loss_that_is_bad_in_the_step_record_alone_is_said_not_hidden) {
  TraceBuilder t;
  t.op("sum", {{"self", t.value(finite())}}, finite(1));
  t.end_step(std::nan(""));
  EXPECT_EQ(table(analysis_of(t)), "unexplained | - | - | loss | step 0 | unknown | inferred\n");
}

}  // namespace
}  // namespace nanhunt
