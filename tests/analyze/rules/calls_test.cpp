// SPDX-License-Identifier: Apache-2.0
// Calls that have no finite answer whatever their numbers are, masks that leave nothing, and forward calls that hid what
// their derivative meets. Each beside its repaired twin.
#include <gtest/gtest.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

// A reduction of what `in` holds to `out`, which is the loss.
Analysis reduced(const std::string& op, const std::string& slot, const Numbers& in, const Numbers& out,
                 const Scalars& scalars = {}) {
  TraceBuilder t;
  const Handle x = t.value(in);
  t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op(op, {{slot, x}}, out, scalars));
  t.end_step();
  return analysis_of(t);
}

TEST(Calls, a_variance_of_no_more_elements_than_its_correction_is_0_by_0) {
  const std::string at = " | <loss> | loss | step 0 | appear | observed\n";
  for (const std::string op : {"std", "var", "var_mean", "std_mean"}) {
    const Analysis one = reduced(op, "self", finite(3).shape({1, 3}), finite(3).nan(3));
    EXPECT_EQ(table(one), "divide_by_zero | " + op + at);
    EXPECT_EQ(one.findings[0].advice.at(0).id, "few-elements");
    EXPECT_EQ(table(reduced(op, "self", finite(6).shape({2, 3}), finite(3).nan(3), {{"correction", 2}})),
              "divide_by_zero | " + op + at);
    EXPECT_EQ(table(reduced(op, "self", finite(6).shape({2, 3}), finite(3))), "clean\n");
    // Enough elements: what is not finite has another reason.
    EXPECT_NE(table(reduced(op, "self", finite(6).shape({2, 3}).range(-3e38, 3e38), finite(3).inf(1))),
              "divide_by_zero | " + op + at);
  }
}

TEST(Calls, a_mean_of_nothing_is_0_by_0) {
  const Analysis none = reduced("mean", "self", finite(0).shape({0}), finite(1).nan(1));
  EXPECT_EQ(table(none), "divide_by_zero | mean | <loss> | loss | step 0 | appear | observed\n");
  EXPECT_EQ(none.findings[0].advice.at(0).id, "skip-empty");
  EXPECT_EQ(table(reduced("mean", "self", finite(4), finite(1))), "clean\n");
}

TEST(Calls, ctc_without_a_path_is_outside_of_its_domain) {
  const Analysis none = reduced("_ctc_loss", "log_probs", finite(24).range(-5, 0), finite(2).inf(1));
  EXPECT_EQ(table(none), "invalid | _ctc_loss | <loss> | loss | step 0 | appear | observed\n");
  EXPECT_EQ(none.findings[0].advice.at(0).id, "ctc-lengths");
  EXPECT_EQ(table(reduced("_ctc_loss", "log_probs", finite(24).range(-5, 0), finite(2))), "clean\n");
}

// `masked` of the 4 rows of 3 hold nothing but -Inf.
Analysis summed(std::int64_t masked) {
  TraceBuilder t;
  const Handle x = t.value(finite(12).shape({4, 3}));
  const Handle m = t.in("<loss>", Phase::kLoss).op("masked_fill", {{"self", x}}, finite(12).shape({4, 3}).neg_inf(masked == 0 ? 4 : 3 * masked),
                        {{"value", -std::numeric_limits<double>::infinity()}});
  const Handle s = t.op("logsumexp", {{"self", m}}, masked == 0 ? finite(4) : finite(4).neg_inf(masked));
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", s}}, masked == 0 ? finite(1) : finite(1).neg_inf(1)));
  t.end_step();
  return analysis_of(t);
}

TEST(Calls, logsumexp_of_a_row_of_which_all_is_masked_is_the_origin_and_not_the_mask) {
  const Analysis none = summed(1);
  EXPECT_EQ(table(none), "invalid | logsumexp | <loss> | loss | step 0 | propagate | observed\n");
  EXPECT_EQ(none.findings[0].advice.at(0).id, "finite-mask");
  EXPECT_EQ(table(summed(0)), "clean\n");
}

// A softmax in its parts. `own`: what is subtracted is the largest of its own rows.
Analysis without_largest(bool own) {
  TraceBuilder t;
  const auto masked = [&] {
    return t.in("attn").op("masked_fill", {{"self", t.value(finite(12).shape({4, 3}))}}, finite(12).shape({4, 3}).neg_inf(3),
                           {{"value", -std::numeric_limits<double>::infinity()}});
  };
  const Handle m = masked(), of = own ? m : masked();
  const Handle largest = t.op("amax", {{"self", of}}, finite(4).shape({4, 1}).neg_inf(1));
  const Handle s = t.op("sub", {{"self", m}, {"other", largest}}, finite(12).shape({4, 3}).nan(3));
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", s}}, finite(1).nan(1)));
  t.end_step();
  return analysis_of(t);
}

TEST(Calls, a_row_whose_largest_number_is_a_mask_is_told_as_a_softmax_of_it_is) {
  const Finding own = without_largest(true).findings.at(0), other = without_largest(false).findings.at(0);
  EXPECT_EQ(own.title, "sub in attn meets a row of only -Inf");
  EXPECT_EQ(own.advice.at(0).id, "keep-one-key");
  EXPECT_EQ(other.title, "sub in attn turns infinities of a mask into NaN");
}

// The angle of y / x is finite at x = 0, its derivative by x is not. `apart`: backward divides by something else.
Analysis angle(bool zero, bool apart) {
  TraceBuilder t;
  const Numbers x_of = zero ? finite(1).zeros(1).range(0, 0) : finite(1);
  const Handle y = t.value(finite()), x = t.value(x_of);
  const Handle q = t.in("<loss>", Phase::kLoss).called_from("train.py:7").op("div", {{"self", y}, {"other", x}},
                        zero ? finite().inf(8) : finite());
  const Handle a = t.op("atan", {{"self", q}}, finite());
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", a}}, finite(1)));
  const Handle g = t.in("<loss>", Phase::kBackward).op("atan_backward", {{"grad_output", t.value(finite())}},
                        finite().zeros(8).range(0, 0));
  const Handle d = t.op("div", {{"self", g}, {"other", apart ? t.value(x_of) : x}}, zero ? finite().nan(8) : finite());
  t.mark(TensorRole::kBoundaryGradient, "y", d);
  t.end_step();
  return analysis_of(t);
}

TEST(Calls, a_singular_gradient_names_the_call_that_hid_it_in_forward) {
  const Analysis hidden = angle(true, false);
  ASSERT_EQ(table(hidden), "divide_by_zero | div | <loss> | backward | step 0 | appear | observed\n");
  const std::vector<std::string>& told = hidden.findings[0].evidence;
  EXPECT_NE(std::find(told.begin(), told.end(),
                      "The loss set it up: div made 8 Inf of 8 at train.py:7 of the same argument, and atan in <loss> hid it."),
            told.end())
      << ::testing::PrintToString(told);
  const Analysis apart = angle(true, true);
  for (const std::string& text : apart.findings.at(0).evidence) EXPECT_FALSE(text.starts_with("The loss set"));
  EXPECT_EQ(table(angle(false, false)), "clean\n");
}

// -log(p), whose infinities an op puts others in place of; backward divides by p again.
Analysis replaced(const char* by, bool zero, bool nan = false) {
  TraceBuilder t;
  const Handle p = t.value(zero ? finite(8).zeros(2).range(0, 1) : finite(8).range(0.25, 1));
  const Numbers logs = !zero ? finite(8) : nan ? finite(8).nan(2) : finite(8).neg_inf(2);
  const Handle l = nan ? t.in("<loss>", Phase::kLoss)
                             .called_from("train.py:7")
                             .op("div", {{"self", t.value(finite(8).zeros(2))}, {"other", p}}, logs)
                       : t.in("<loss>", Phase::kLoss).called_from("train.py:7").op("log", {{"self", p}}, logs);
  t.mark(TensorRole::kLoss, "loss", t.called_from("train.py:8").op(by, {{"self", l}}, finite(8)));
  t.in("<loss>", Phase::kBackward).called_from("train.py:7");
  const Handle g = t.value(finite(8).zeros(8).range(0, 0));
  const Handle d = t.op("div", {{"self", g}, {"other", p}}, zero ? finite(8).nan(2) : finite(8));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", d);
  t.end_step();
  return analysis_of(t);
}

TEST(Calls, what_made_infinities_that_another_op_replaced_in_forward_is_the_origin_of_what_backward_makes_of_them) {
  for (const char* by : {"nan_to_num", "clamp", "clamp_min"}) {
    const Analysis hidden = replaced(by, true);
    ASSERT_EQ(table(hidden), "divide_by_zero | log | <loss> | loss | step 0 | appear | observed\n") << by;
    const Finding& f = hidden.findings[0];
    EXPECT_EQ(f.title, std::string("log in <loss>: log of 0; ") + by + " in <loss> hides it until backward");
    EXPECT_EQ(f.advice.at(0).id, "clamp-input");
    EXPECT_EQ(f.sinks, std::vector<std::string>{"gradient of fc.weight"});
    EXPECT_TRUE(f.unfinished);
    EXPECT_EQ(f.bad_steps.count, 1u);
    ASSERT_GE(f.chain.nodes.size(), 3u);
    EXPECT_EQ(f.chain.nodes[0].op, "log");
    EXPECT_EQ(f.chain.nodes[1].lifecycle, Lifecycle::kDisappear);
    EXPECT_EQ(table(replaced(by, false)), "clean\n");
  }
  EXPECT_EQ(table(replaced("nan_to_num", true, true)),
            "divide_by_zero | div | <loss> | loss | step 0 | appear | observed\n");
  // Where a function has a value at infinity, nothing was put in place.
  EXPECT_EQ(table(replaced("sigmoid", true)),
            "divide_by_zero | div | <loss> | backward | step 0 | appear | observed\n");
}

}  // namespace
}  // namespace nanhunt
