// SPDX-License-Identifier: Apache-2.0
// Infinities that disappear: absorbed, unselected, or hidden until backward meets them again.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
constexpr double kInf = std::numeric_limits<double>::infinity();

// x / sqrt(mean(x * x)) in fp16: the squares overflow in some steps, the reciprocal root absorbs them.
struct HiddenOverflow {
  int steps = 5, from = 2, until = 5;
  bool all = true;             // every row, so the output is 0 everywhere
  bool gradient = false;       // comes back all the same
  const char* absorber = "rsqrt";
  bool autocast = false;       // to fp16, without a loss scaler
};
Analysis normalised(const HiddenOverflow& o) {
  TraceBuilder t;
  if (o.autocast) t.setup(SetupFact::kAutocast, "", "train.py:3", DType::kF16);
  for (int step = 0; step < o.steps; ++step) {
    const bool over = step >= o.from && step < o.until;
    const Numbers h = finite(8).as(DType::kF16).range(-300, 300);
    const Handle x = t.value(h);
    const Handle q = t.in("norm").op("mul", {{"self", x}, {"other", x}}, over ? h.inf(o.all ? 8 : 2) : h);
    const Numbers zero = finite(8).as(DType::kF16).zeros(8).range(0, 0);
    const Numbers some = finite(8).as(DType::kF16).zeros(2).range(0, 1);
    const Handle r = t.op(o.absorber, {{"self", q}}, over ? (o.all ? zero : some) : h.range(0.1, 1));
    const Handle y = t.in("out").op("mul", {{"self", x}, {"other", r}}, over && o.all ? zero : h);
    t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, finite(1)));
    const Numbers back = over && !o.gradient ? zero : h;
    t.in("norm", Phase::kBackward)
        .op(std::string(o.absorber) + "_backward", {{"grad_output", t.value(h)}}, back);
    t.end_step();
  }
  return analysis_of(t);
}

TEST(Swallowed, overflow_that_an_op_absorbs_is_a_warning_at_the_op_that_made_it) {
  const Analysis a = normalised({.all = false});
  EXPECT_EQ(table(a), "warning overflow | mul | norm | forward | step 2 | appear | observed\n");
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.title, "mul in norm overflows fp16: 2 of 8 results exceed 65504; rsqrt in norm hides it");
  EXPECT_EQ(f.occurrence_count, 3u);
  EXPECT_EQ(f.last_step, 4u);
  ASSERT_EQ(f.chain.nodes.size(), 2u);
  EXPECT_EQ(f.chain.nodes[1].lifecycle, Lifecycle::kDisappear);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(table(normalised({.from = 5})), "clean\n");
}

TEST(Swallowed, overflow_is_told_before_a_loss_scaler_that_is_missing) {
  const Analysis a = normalised({.all = false, .autocast = true});
  ASSERT_EQ(a.findings.size(), 2u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(a.findings[1].title, "The model runs under autocast to fp16 without a loss scaler");
}

TEST(Swallowed, overflow_that_leaves_what_it_feeds_dead_is_a_fault) {
  const Analysis a = normalised({});
  EXPECT_EQ(table(a), "overflow | mul | norm | forward | step 2 | appear | observed\n");
  EXPECT_NE(a.findings[0].evidence.back().find("constant for 3 steps"), std::string::npos);
  // and not where it lived again, was too short to tell, or a gradient still came back
  EXPECT_EQ(normalised({.until = 4}).verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(normalised({.from = 3}).verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(normalised({.gradient = true}).verdict.status, VerdictStatus::kWarning);
}

TEST(Swallowed, by_clamp_or_tanh_is_a_warning_and_by_an_op_that_only_selects_is_none) {
  for (const char* op : {"clamp", "clamp_", "tanh", "nan_to_num", "aten::atan", "div"}) {
    TraceBuilder t;
    const Handle x = t.value(finite().range(0, 100));
    const Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
    const Handle y = t.op(op, {{"self", x}, {"other", e}}, finite());
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)), "warning overflow | exp | a | forward | step 0 | appear | observed\n") << op;
  }
  for (const char* op : {"where", "index", "amin", "gt"}) {
    TraceBuilder t;
    const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    t.mark(TensorRole::kLoss, "loss", t.op(op, {{"self", e}}, finite()));
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)), "clean\n") << op;
  }
}

// A sum of `mask` and another one, or of a number like that and scores, which a clamp makes finite again.
std::string summed_and_clamped(double other, const char* back) {
  constexpr double kLowest = -3.3895e38;
  TraceBuilder t;
  const Numbers mask = finite(8).as(DType::kBF16).zeros(4).range(kLowest, 0);
  const Handle sum = t.in("lm").op("add", {{"self", t.value(mask)}, {"other", t.value(mask.range(other, 0))}},
                                   finite(8).as(DType::kBF16).neg_inf(2));
  t.mark(TensorRole::kLoss, "loss", t.op(back, {{"self", sum}}, mask));
  t.end_step();
  return table(analysis_of(t));
}

TEST(Swallowed, sum_of_masks_that_a_clamp_brings_back_is_none_and_that_of_other_numbers_is_a_warning) {
  EXPECT_EQ(summed_and_clamped(-3.3895e38, "clamp"), "clean\n");
  EXPECT_EQ(summed_and_clamped(-3.3895e38, "nan_to_num"), "clean\n");
  const std::string warning = "warning overflow | add | lm | forward | step 0 | appear | observed\n";
  EXPECT_EQ(summed_and_clamped(-1e38, "clamp"), warning);
  EXPECT_EQ(summed_and_clamped(-3.3895e38, "tanh"), warning);
}

TEST(Swallowed, infinity_written_on_purpose_or_of_a_true_pole_is_none) {
  TraceBuilder t;
  const Handle f = t.in("a").op("full", {}, finite().inf(8), {{"fill_value", kInf}});
  t.mark(TensorRole::kLoss, "loss", t.op("div", {{"self", t.value(finite())}, {"other", f}}, finite().zeros(8)));
  const Handle l = t.op("log", {{"self", t.value(finite().zeros(1).range(0, 1))}}, finite().neg_inf(1));
  t.mark(TensorRole::kLoss, "loss2", t.op("sigmoid", {{"self", l}}, finite().zeros(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Swallowed, overflow_of_a_norm_that_turns_the_clip_into_zero_is_a_warning) {
  for (const bool bug : {true, false}) {
    TraceBuilder t;
    const Numbers h = finite(8).as(DType::kF16).range(-6e4, 6e4);
    Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, h);
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    const Handle n = t.in("fc.weight", Phase::kClip)
                         .op("linalg_vector_norm", {{"self", g}}, bug ? finite(1).as(DType::kF16).inf(1) : finite(1));
    const Handle c = t.op("reciprocal", {{"self", n}}, bug ? finite(1).zeros(1).range(0, 0) : finite(1));
    t.in_place("mul_", g, {{"other", c}}, bug ? h.zeros(8).range(0, 0) : h);
    t.end_step();
    EXPECT_EQ(
        table(analysis_of(t)),
        bug ? "warning overflow | linalg_vector_norm | fc.weight | clip | step 0 | appear | observed\n" : "clean\n");
  }
}

TEST(Swallowed, overflow_that_does_harm_in_another_step_is_one_finding) {
  TraceBuilder t;
  for (const bool harm : {false, true}) {
    const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    if (harm) {
      t.mark(TensorRole::kLoss, "loss", e);
    } else {
      t.op("tanh", {{"self", e}}, finite());
    }
    t.end_step();
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | exp | a | forward | step 1 | appear | observed\n");
  EXPECT_EQ(a.findings[0].evidence.back(), "In step 0 the same overflow disappeared in tanh in a.");
}

TEST(Hidden, infinity_that_backward_meets_again_in_what_was_saved_is_the_origin_of_the_nan) {
  struct Case {
    const char *op, *slot;
    double exponent;
  };
  // given 1 / x, log and pow whose saved argument is an Inf that forward hid
  for (const Case& c : {Case{"div", "other", 0}, Case{"log", "self", 0}, Case{"pow", "self", -0.5}}) {
    TraceBuilder t;
    const Handle a = t.value(finite());
    const Handle e = t.in("act").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
    const Scalars scalars = c.exponent != 0 ? Scalars{{"exponent", c.exponent}} : Scalars{};
    const Handle y = t.op(c.op, {{"x", a}, {c.slot, e}}, finite().zeros(1), scalars);
    t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, finite(1)));
    t.release(y);
    t.in("act", Phase::kBackward);
    const Handle g = t.op(std::string(c.op) + "_backward",
                          {{"grad_output", t.value(finite())}, {c.slot, e, ArgRole::kSaved}}, finite().nan(1), scalars);
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    t.end_step();
    const Analysis found = analysis_of(t);
    EXPECT_EQ(table(found), "overflow | exp | act | forward | step 0 | appear | observed\n") << c.op;
    EXPECT_EQ(found.findings.at(0).first_nan->phase, Phase::kBackward);
  }
}

TEST(Masked, row_without_any_entry_is_named) {
  TraceBuilder t;
  const Handle s = t.value(finite(16).shape({2, 2, 4}));
  const Handle f = t.in("attn").op("masked_fill", {{"self", s}, {"mask", t.value(finite(16)), ArgRole::kMask}},
                                   finite(16).shape({2, 2, 4}).neg_inf(9), {{"value", -kInf}});
  const Handle p = t.op("softmax", {{"self", f}}, finite(16).shape({2, 2, 4}).nan(8).first_at(4), {{"dim", -1}});
  t.mark(TensorRole::kLoss, "loss", p);
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "invalid | softmax | attn | forward | step 0 | transform | observed\n");
  EXPECT_EQ(a.findings[0].evidence.at(0),
            "Every entry of row [0, 1] is masked: the first row that is NaN of 2 such rows.");
}

TEST(Swallowed, zeros_that_softmax_made_of_infinities_lead_to_where_those_began) {
  // -log(u) of a u that was 0, and the logarithm of what softmax makes of it; its twin: the logarithm of a mask
  for (const bool mask : {false, true}) {
    TraceBuilder t;
    const Handle u = t.value(mask ? finite().zeros(1).range(0, 1).smallest_of(1) : finite().zeros(1).range(0, 0.9));
    const Handle noise = t.in("net").op("log", {{"self", u}}, finite().neg_inf(1));
    const Handle logits = t.in("net").op("add", {{"self", t.value(finite())}, {"other", noise}}, finite().neg_inf(1));
    const Handle y = t.in("net").op("_softmax", {{"self", logits}}, finite().zeros(1).range(0, 0.5));
    const Handle entropy = t.in("net").op("log", {{"self", y}}, finite().neg_inf(1));
    const Handle sum = t.in("net").op("mul", {{"self", y}, {"other", entropy}}, finite().nan(1));
    t.mark(TensorRole::kLoss, "loss", sum);
    t.end_step();
    const Finding f = analysis_of(t).findings.at(0);
    EXPECT_EQ(f.place.seq, mask ? 3u : 0u) << mask;
  }
}

}  // namespace
}  // namespace nanhunt
