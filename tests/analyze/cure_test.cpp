// SPDX-License-Identifier: Apache-2.0
// What is said of causes and cures is true of the operands: a format is offered only where it would have held the
// result.
#include <gtest/gtest.h>

#include <cmath>

#include "src/analyze/wording/advice.h"
#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
constexpr double kInf = std::numeric_limits<double>::infinity();

std::string advice_of(const Finding& f) {
  std::string out;
  for (const Advice& a : f.advice) out += a.id + " ";
  return out;
}

std::string text_of(const Finding& f) {
  std::string out = f.title + " " + f.explanation;
  for (const std::string& line : f.evidence) out += "\n" + line;
  return out;
}

bool says(const Finding& f, const std::string& words) { return text_of(f).find(words) != std::string::npos; }

Finding exp_overflow(double largest_argument) {
  TraceBuilder t;
  const Handle x = t.value(finite().as(DType::kF16).range(-267.8, largest_argument));
  t.mark(TensorRole::kLoss, "loss", t.in("act").op("exp", {{"self", x}}, finite().as(DType::kF16).inf(2)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_exp_offer_a_wider_format_only_where_it_holds_the_largest_argument) {
  const Finding wide = exp_overflow(108.3), narrow = exp_overflow(12);
  EXPECT_EQ(advice_of(wide), "clamp-input ");
  EXPECT_TRUE(says(wide, "At 108.3 exp passes fp32 and bf16 too (from 88.72 on)")) << text_of(wide);
  EXPECT_FALSE(says(wide, "made it infinite"));
  EXPECT_EQ(advice_of(narrow), "fp32-compute bf16 clamp-input ");
  EXPECT_TRUE(says(narrow, "storing it as fp16 made it infinite")) << text_of(narrow);
  EXPECT_TRUE(says(narrow, "largest magnitude: self 267.8")) << text_of(narrow);
}

Finding pow_overflow(double exponent, bool counted = true) {
  TraceBuilder t;
  const Numbers base = finite().as(DType::kF16).range(0, 300);
  const Handle x = t.value(counted ? base : base.uncounted());
  t.mark(TensorRole::kLoss, "loss",
         t.in("act").op("pow", {{"self", x}}, finite().as(DType::kF16).inf(1), {{"exponent", exponent}}));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_pow_offer_a_wider_format_only_where_the_operands_allow_it) {
  EXPECT_EQ(advice_of(pow_overflow(2)), "fp32-compute bf16 ");
  const Finding unknown = pow_overflow(2, /*counted=*/false);
  EXPECT_EQ(advice_of(unknown), "fp32-compute bf16 ");
  EXPECT_EQ(unknown.advice[0].why, "The results may fit fp32: how large they are was not recorded.");
}

TEST(Cures, of_a_product_whose_operands_were_seen_to_pass_fp32_too_offer_no_format) {
  TraceBuilder t;
  const auto wide = [&] { return t.value(finite().range(-1e30, 1e30)); };
  const Handle a = wide(), b = wide();
  const Handle y = t.in("act").op("mul", {{"self", a}, {"other", b}}, finite().as(DType::kBF16).inf(1));
  t.element(y, 3, kInf, {{{"self", a}, 1e30}, {{"other", b}, 1e30}});
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  EXPECT_EQ(advice_of(analysis_of(t).findings.at(0)), "lower-magnitude ");
}

// A branch that is not taken: exp overflows, `where` drops it, and backward meets it again.
Finding returned(bool recorded) {
  TraceBuilder t;
  const auto h = [] { return finite().as(DType::kF16).shape({4, 2}); };
  const Handle x = t.value(h().range(-1, 30));
  const Handle e = t.in("act").op("exp", {{"self", x}}, h().inf(1));
  t.element(e, 5, kInf, {{{"self", x}, 30}});
  const Handle chosen = t.op(
      "where", {{"condition", t.value(finite().as(DType::kBool)), ArgRole::kMask}, {"self", x}, {"other", e}}, h());
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", chosen}}, finite(1)));
  t.in("act", Phase::kBackward);
  const Handle d = t.value(h().zeros(1));
  const Handle g = t.op("exp_backward", {{"grad_output", d}, {"result", e, ArgRole::kSaved}}, h().nan(1));
  if (recorded) t.element(g, 5, std::nan(""), {{{"grad_output", d}, 0.0}, {{"result", e}, kInf}});
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_hidden_infinity_begin_with_how_it_came_back) {
  const Finding f = returned(true);
  EXPECT_TRUE(says(f, "at [2, 1]: exp_backward multiplied the gradient 0 by the stored Inf and made NaN. In forward "
                      "`where` did not use the infinite numbers, so the loss stayed finite in step 0."))
      << text_of(f);
  EXPECT_FALSE(says(returned(false), "exp_backward multiplied"));
}

TEST(Cures, that_worked_come_first_and_those_that_failed_last_but_a_scale_that_is_too_large_stays_the_first) {
  const auto ordered = [](const char* front) {
    Finding f;
    f.advice = {analyze::make_advice(front), analyze::make_advice("raise-eps"), analyze::make_advice("bf16"), analyze::make_advice("fp32-compute")};
    f.advice[1].verified = false;
    f.advice[3].on_these_numbers = true;
    analyze::put_tried_first(f.advice);
    return advice_of(f);
  };
  EXPECT_EQ(ordered("clamp-input"), "fp32-compute clamp-input bf16 raise-eps ");
  EXPECT_EQ(ordered("init-scale"), "init-scale fp32-compute bf16 raise-eps ");
}

TEST(Cures, that_were_tried_in_a_concrete_form_are_not_listed_as_untried_too) {
  TraceBuilder t;
  const Handle x = t.value(finite().as(DType::kF16).range(-1, 12));
  t.mark(TensorRole::kLoss, "loss", t.in("act").op("exp", {{"self", x}}, finite().as(DType::kF16).inf(2)));
  t.end_step();
  ExperimentRecord tried;
  tried.fix = "clamp-before-exp";
  tried.description = "the argument of exp clamped";
  tried.verified = tried.finite = true;
  t.experiment(tried);
  EXPECT_EQ(advice_of(analysis_of(t).findings.at(0)), "clamp-before-exp fp32-compute bf16 ");
}

// A division by 0 in backward, by a root that forward took in line 3: of a sum of squares, or of each number.
struct Root {
  bool norm = false;
  const char* divided_in = "train.py:3";  // PyTorch's derivative has the line of the root
};

Finding divided_by_root(const Root& r) {
  TraceBuilder t;
  t.in("net").called_from("train.py:3");
  const Handle x = t.value(finite().zeros(1).range(0, 1));
  Handle s = x;
  if (r.norm)
    s = t.op("sum", {{"self", t.op("mul", {{"self", x}, {"other", x}}, finite().zeros(1))}}, finite().zeros(1));
  const Handle root = t.op("sqrt", {{"self", s}}, finite().zeros(1).range(0, 1));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", root}}, finite(1)));
  t.in("net", Phase::kBackward).called_from(r.divided_in);
  const Handle g = t.op("div", {{"self", t.value(finite())}, {"other", root}}, finite().inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_root_are_given_for_its_derivative_and_speak_of_a_norm_where_it_takes_a_sum_of_squares) {
  EXPECT_EQ(advice_of(divided_by_root({.norm = true})), "builtin-norm eps-in-sqrt ");
  EXPECT_EQ(advice_of(divided_by_root({.norm = false})), "eps-in-sqrt ");
  EXPECT_EQ(advice_of(divided_by_root({.norm = true, .divided_in = "train.py:9"})), "guard-denominator ");
}

TEST(Cures, of_a_logarithm_in_a_derivative_keep_its_argument_above_0) {
  TraceBuilder t;
  const Handle p = t.value(finite().zeros(1).range(0, 1));
  const Handle log = t.in("loss", Phase::kBackward).op("log", {{"self", p}}, finite().neg_inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", log);
  t.end_step();
  EXPECT_EQ(advice_of(analysis_of(t).findings.at(0)), "clamp-above-0 ");
}

TEST(Cures, of_a_division_by_a_number_of_the_programs_that_is_0_look_at_the_number) {
  TraceBuilder t;
  Handle g = t.in("fc", Phase::kBackward).op("mm_backward", {}, finite());
  t.in("", Phase::kUnscale).in_place("div_", g, {}, finite().inf(3), {{"other", 0}});
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(advice_of(f), "look-at-divisor ");
  EXPECT_TRUE(says(f, "a number of the program's own, and it is 0")) << text_of(f);
}

TEST(Histograms, of_an_origin_reach_the_report_at_the_level_that_says_so) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(0, 100));
  const Handle e = t.in("a").op("exp", {{"self", x}}, finite().inf(1));
  t.histogram(x, -2, {1, 2, 3});
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(f.inputs.at(0).stats.level, StatsLevel::kHistogram);
  EXPECT_EQ(f.output->stats.level, StatsLevel::kSums);
}

TEST(Cure, names_the_constant_of_the_format_that_the_op_stores) {
  for (const char* id : {"guard-denominator", "raise-eps", "eps-in-sqrt"}) {
    Advice advice = analyze::make_advice(id);
    analyze::fit_to_format(advice, DType::kF16);
    EXPECT_NE(advice.text.find("(fp16: 1e-4)"), std::string::npos) << advice.text;
    for (const auto& [format, words] : {std::pair(DType::kF32, "(fp32: 1e-8)"), std::pair(DType::kBF16, "(bf16: 1e-8)")}) {
      advice = analyze::make_advice(id);
      analyze::fit_to_format(advice, format);
      EXPECT_NE(advice.text.find(words), std::string::npos) << advice.text;
      EXPECT_EQ(advice.text.find("fp16: 1e-4"), std::string::npos) << advice.text;
    }
  }
}

// log of zeros that the last of `makers` made: of a softmax or a sigmoid first.
Finding log_of(const std::vector<std::string>& makers, const std::string& log = "log") {
  TraceBuilder t;
  t.in("head");
  Handle p = t.value(finite());
  for (const std::string& maker : makers) {
    const Numbers made = finite().range(0, 1).zeros(1);
    p = maker == "div" ? t.op("div", {{"self", p}, {"other", t.value(finite().range(1, 2))}}, made)
        : maker == "rsub" ? t.op("rsub", {{"self", p}}, made, {{"other", 1}})
                          : t.op(maker, {{"self", p}}, made);
  }
  std::vector<In> given = {{"self", p}};
  if (log == "xlogy") given = {{"self", t.value(finite().range(1, 2))}, {"other", p}};
  t.mark(TensorRole::kLoss, "loss", t.op(log, given, finite().neg_inf(1)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_log_are_one_with_a_softmax_or_a_sigmoid_only_where_that_made_its_argument) {
  EXPECT_EQ(advice_of(log_of({"softmax"})), "log-softmax clamp-input ");
  EXPECT_EQ(advice_of(log_of({"softmax", "div"})), "clamp-input ");
  EXPECT_EQ(advice_of(log_of({"sigmoid"})), "with-logits clamp-input ");
  EXPECT_EQ(advice_of(log_of({"sigmoid", "rsub"})), "with-logits clamp-input ");
  EXPECT_EQ(advice_of(log_of({"sigmoid", "div"})), "clamp-input ");
  // What a softmax is taken from has another logarithm, and zeros that a mask wrote are not the softmax's.
  EXPECT_EQ(advice_of(log_of({"softmax", "index"})), "log-softmax clamp-input ");
  EXPECT_EQ(advice_of(log_of({"softmax", "rsub"})), "clamp-input ");
  EXPECT_EQ(advice_of(log_of({"softmax", "masked_fill"})), "clamp-input ");
}

// log of a sum of exponentials, of which some are 0: of exponents that are too small, or of a mask. `past`: what stands
// between the two.
Finding log_of_exponentials(const Numbers& exponents, const std::string& past = "") {
  TraceBuilder t;
  const Handle e = t.in("<loss>", Phase::kLoss).op("exp", {{"self", t.value(exponents)}}, finite().range(0, 1).zeros(4));
  const Handle p = t.op("mul", {{"self", e}, {"other", t.value(finite().range(0.1, 0.5))}}, finite().range(0, 1).zeros(4));
  Handle s = t.op("sum", {{"self", p}}, finite(2).range(0, 1).zeros(1));
  if (!past.empty()) s = t.op(past, {{"self", s}}, finite(2).range(0, 1).zeros(1), {{"other", 1}});
  t.mark(TensorRole::kLoss, "loss", t.op("log", {{"self", s}}, finite(2).neg_inf(1)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_log_stay_in_logarithms_where_exponentials_too_small_for_their_format_made_its_argument) {
  const Finding f = log_of_exponentials(finite().range(-900, 1));
  EXPECT_TRUE(says(f, "4 of 8 results of exp are 0")) << text_of(f);
  EXPECT_EQ(advice_of(f), "stay-in-logarithms clamp-input ");
  EXPECT_EQ(advice_of(log_of_exponentials(finite().range(-2, 1).neg_inf(4))), "clamp-input ");
  EXPECT_EQ(advice_of(log_of_exponentials(finite().range(-900, 1), "view")), "stay-in-logarithms clamp-input ");
  for (const std::string past : {"rsub", "sub", "relu"})
    EXPECT_EQ(advice_of(log_of_exponentials(finite().range(-900, 1), past)), "clamp-input ") << past;
}

TEST(Cures, of_xlogy_are_those_of_a_logarithm) {
  EXPECT_EQ(advice_of(log_of({"relu"}, "xlogy")), "clamp-input ");
}

// A division of backward by what the log of line 23 was given, at that line or, by the program, at another one.
Finding derivative_of_log(const std::string& site) {
  TraceBuilder t;
  const Handle x = t.in("<loss>", Phase::kLoss).called_from("m.py:22").op("relu", {{"self", t.value(finite())}}, finite().range(0, 1).zeros(2));
  t.called_from("m.py:23").op("log", {{"self", x}}, finite().neg_inf(2));
  const Handle d = t.in("<loss>", Phase::kBackward).called_from(site).op("div", {{"self", t.value(finite().zeros(2))}, {"other", x}}, finite().nan(2));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", d);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_division_that_is_the_derivative_of_log_speak_of_log) {
  const Finding f = derivative_of_log("m.py:23");
  EXPECT_EQ(f.title, "div in <loss>: the derivative of log is infinite at 0");
  EXPECT_TRUE(says(f, "In loss log gave 2 -Inf of 8")) << text_of(f);
  EXPECT_EQ(advice_of(f), "clamp-input ");
  const Finding own = derivative_of_log("m.py:30");
  EXPECT_EQ(own.title, "div in <loss>: 0/0");
  EXPECT_EQ(advice_of(own), "guard-denominator ");
}

// A division of backward by what a log was given, whose results another op of forward read. `on`: the arguments that it
// has beside them.
Finding derivative_behind(const std::string& reader, const std::vector<std::string>& on = {}, const Numbers& made = finite()) {
  TraceBuilder t;
  const Handle x = t.in("<loss>", Phase::kLoss).called_from("m.py:22").op("relu", {{"self", t.value(finite())}}, finite().range(0, 1).zeros(2));
  const Handle y = t.called_from("m.py:23").op("log", {{"self", x}}, finite().range(-9, 0));
  const Handle mask = t.value(finite().range(0, 1).smallest_of(1).zeros(2));
  std::vector<In> inputs{{"self", t.called_from("m.py:24").op("neg", {{"self", y}}, finite().range(0, 9))}};
  for (const std::string& slot : on) inputs.push_back({slot, mask});
  t.called_from("m.py:25").op(reader, inputs, made);
  const Handle d = t.in("<loss>", Phase::kBackward).called_from("m.py:23").op("div", {{"self", t.value(finite().zeros(2))}, {"other", x}}, finite().nan(2));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", d);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_an_op_whose_results_are_dropped_later_are_to_select_what_it_is_given) {
  const Finding f = derivative_behind("where", {"other"});
  EXPECT_EQ(advice_of(f), "select-argument clamp-input ");
  EXPECT_TRUE(says(f, "Forward discards this result (where at m.py:25)")) << text_of(f);
  EXPECT_EQ(advice_of(derivative_behind("mul", {"other"})), "select-argument clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("nan_to_num")), "select-argument clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("clamp")), "select-first clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("index_select", {}, finite().shape({4}))), "select-first clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("sum")), "clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("mul")), "clamp-input ");
  EXPECT_EQ(advice_of(derivative_behind("cat")), "clamp-input ");
}

// where(x < 20, log1p(exp(x)), x): the infinite exponential is dropped, and backward multiplies 0 by it. `bad_loss`: the
// loss is not finite either.
Finding dropped_exponential(bool bad_loss) {
  TraceBuilder t;
  t.in("<loss>", Phase::kLoss).called_from("m.py:7");
  const Handle e = t.op("exp", {{"self", t.value(finite().range(-3, 96))}}, finite().inf(1));
  const Handle y = t.op("where", {{"self", t.op("log1p", {{"self", e}}, finite().inf(1))}, {"other", t.value(finite())}}, finite());
  const Handle loss = bad_loss ? t.op("add", {{"self", e}, {"other", y}}, finite().inf(1)) : t.op("sum", {{"self", y}}, finite(1));
  t.mark(TensorRole::kLoss, "loss", loss);
  const Handle g = t.in("<loss>", Phase::kBackward).op("mul", {{"self", t.value(finite().zeros(1))}, {"other", e}}, finite().nan(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_what_forward_drops_and_backward_brings_back_are_to_select_what_the_op_is_given) {
  const Finding f = dropped_exponential(false);
  EXPECT_EQ(advice_of(f), "select-argument clamp-input lower-magnitude ");
  EXPECT_TRUE(says(f, "Forward discards this result (where)")) << text_of(f);
  EXPECT_EQ(advice_of(dropped_exponential(true)), "clamp-input lower-magnitude ");
}

// 5e20 / divisor passes fp32.
Finding quotient(double numerator, double divisor) {
  TraceBuilder t;
  const Handle a = t.value(finite().range(-numerator, numerator)), b = t.value(finite().range(divisor, divisor).smallest_of(divisor));
  const Handle y = t.in("scan").op("div", {{"self", a}, {"other", b}}, finite().inf(1));
  t.element(y, 3, kInf, {{{"self", a}, numerator}, {{"other", b}, divisor}});
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_quotient_tell_a_divisor_that_vanishes) {
  const Finding f = quotient(5e20, 2.7e-22);
  EXPECT_EQ(advice_of(f), "vanishing-divisor ");
  EXPECT_TRUE(says(f, "The divisor is extreme: 2.7e-22.")) << text_of(f);
  EXPECT_EQ(advice_of(quotient(3e38, 0.25)), "lower-magnitude ");
}

// exp(x) / exp(x).sum(), which is NaN; what reads the quotient, or elements of it: `reader`.
std::string softmax_by_hand(const std::string& reader) {
  TraceBuilder t;
  const Handle e = t.in("<loss>", Phase::kLoss).op("exp", {{"self", t.value(finite().range(-3, 96))}}, finite().inf(1));
  const Handle sum = t.op("sum", {{"self", e}}, finite(1).inf(1));
  const Handle p = t.op("div", {{"self", e}, {"other", sum}}, finite().nan(1));
  t.mark(TensorRole::kLoss, "loss", t.op(reader, {{"self", t.op("gather", {{"self", p}}, finite(4).nan(1))}}, finite(4).nan(1)));
  t.end_step();
  return advice_of(analysis_of(t).findings.at(0));
}

TEST(Cures, of_a_softmax_by_hand_are_no_clamp_in_a_logarithm) {
  EXPECT_EQ(softmax_by_hand("sum"), "subtract-largest clamp-input lower-magnitude ");
  EXPECT_EQ(softmax_by_hand("log"), "log-softmax with-logits lower-magnitude ");
}

// In backward the square of 3.8e20, or a product of two such numbers.
std::string squared(bool square) {
  TraceBuilder t;
  const Handle r = t.in("<loss>", Phase::kLoss).op("reciprocal", {{"self", t.value(finite())}}, finite().range(1, 3.8e20));
  const Handle other = square ? r : t.value(finite().range(1, 3.8e20));
  const Handle y = t.in("<loss>", Phase::kBackward).op("mul", {{"self", r}, {"other", other}}, finite().inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", y);
  t.end_step();
  return advice_of(analysis_of(t).findings.at(0));
}

TEST(Cures, of_the_derivative_of_a_reciprocal_keep_what_divides_from_vanishing) {
  EXPECT_EQ(squared(true), "vanishing-divisor ");
  EXPECT_EQ(squared(false), "lower-magnitude ");
}

// The derivative of log divides by a number that almost vanishes, which `maker` made.
std::string derivative_at(const std::string& maker) {
  TraceBuilder t;
  const Numbers tiny = finite(1).range(3.8e-41, 3.8e-41).smallest_of(3.8e-41);
  t.in("<loss>", Phase::kLoss).called_from("m.py:9");
  const Handle d = t.op("abs", {{"self", t.op(maker, {{"A", t.value(finite())}}, tiny)}}, tiny);
  t.op("log", {{"self", d}}, finite(1).range(-93, -93));
  const Handle g = t.value(finite(1).range(1, 1));
  const Handle y = t.in("<loss>", Phase::kBackward).op("div", {{"self", g}, {"other", d}}, finite(1).inf(1));
  t.element(y, 0, kInf, {{{"self", g}, 1}, {{"other", d}, 3.8e-41}});
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", y);
  t.end_step();
  return advice_of(analysis_of(t).findings.at(0));
}

TEST(Cures, of_the_logarithm_of_a_determinant_are_slogdet) {
  EXPECT_EQ(derivative_at("_linalg_det"), "slogdet ");
  EXPECT_EQ(derivative_at("mm"), "clamp-input ");
}

// A function that passes fp32; `exact`: its result in fp64. What reads it first: `reader`.
Finding grown(const std::string& function, double exact, const std::string& reader) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(80, 90));
  const Handle y = t.in("<loss>", Phase::kLoss).op(function, {{"self", x}}, finite().inf(1));
  for (const auto& [mode, dtype] : {std::pair{ProbeMode::kSame, DType::kF32}, std::pair{ProbeMode::kWider, DType::kF64}}) {
    ProbeRecord probe;
    probe.mode = mode;
    probe.dtype = dtype;
    probe.ran = true;
    probe.pos_inf = mode == ProbeMode::kSame ? 1 : 0;
    probe.flat_index = 3;
    probe.number = mode == ProbeMode::kSame ? kInf : exact;
    t.probe(probe);
  }
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", t.op(reader, {{"self", y}}, finite().inf(1))}}, finite(1).inf(1)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_function_that_overflows_on_the_way_to_a_result_that_fits_take_its_scaled_form) {
  const Finding inside = grown("i0", 2.2e37, "mul");
  EXPECT_EQ(inside.title, "i0 in <loss> overflows fp32 inside: 1 of 8 results are infinite");
  EXPECT_EQ(advice_of(inside), "scaled-function ");
  const Finding beyond = grown("i0", 2.2e39, "mul");
  EXPECT_EQ(beyond.title, "i0 in <loss> overflows fp32: 1 of 8 results exceed 3.403e38");
  EXPECT_EQ(advice_of(beyond), "lower-magnitude ");
}

TEST(Cures, of_a_growing_function_that_goes_into_a_logarithm_take_both_in_one) {
  EXPECT_EQ(advice_of(grown("cosh", 5e56, "log")), "log-form ");
  EXPECT_EQ(advice_of(grown("cosh", 5e56, "mul")), "lower-magnitude ");
}

TEST(Cures, of_a_divisor_that_is_one_number_of_the_programs_own_look_at_where_it_comes_from) {
  for (const bool made : {false, true}) {
    TraceBuilder t;
    const Numbers zero = finite(1).range(0, 0).zeros(1);
    Handle count = t.value(zero);
    if (made) count = t.in("").op("sum", {{"self", t.value(finite().range(0, 0).zeros(8))}}, zero);
    const Handle y = t.in("").op("div", {{"self", t.value(finite(1).range(1, 1))}, {"other", count}}, finite(1).inf(1));
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(advice_of(analysis_of(t).findings.at(0)), made ? "skip-zero-divisors " : "look-at-divisor ");
  }
}

TEST(Cures, of_0_by_a_number_that_is_0_keep_the_number_away_from_0) {
  TraceBuilder t;
  const Numbers zero = finite(1).range(0, 0).zeros(1);
  const Handle y = t.in("").op("div", {{"self", t.value(finite(4).range(0, 0).zeros(4))}, {"other", t.value(zero)}}, finite(4).nan(4));
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(advice_of(f), "clamp-divisor ");
  EXPECT_TRUE(says(f, "a single number that the program holds, and it is 0")) << text_of(f);
}

TEST(Cures, say_the_other_lines_at_which_the_same_arose) {
  TraceBuilder t;
  const auto divided = [&](const std::string& line) {
    return t.called_from(line).op("div", {{"self", t.value(finite(4))}, {"other", t.value(finite(4).range(0, 1).zeros(1))}}, finite(4).inf(1));
  };
  t.in("head");
  const Handle a = divided("train.py:8"), b = divided("train.py:9"), c = divided("torch/nn/functional.py:9");
  const Handle y = t.called_from("train.py:10").op("add", {{"self", a}, {"other", b}}, finite(4).inf(2));
  const Handle z = t.called_from("train.py:11").op("add", {{"self", y}, {"other", c}}, finite(4).inf(3));
  t.mark(TensorRole::kLoss, "loss", z);
  t.end_step();
  const Analysis found = analysis_of(t);
  ASSERT_EQ(found.findings.size(), 1u) << table(found);
  EXPECT_EQ(found.findings[0].also_at, std::vector<std::string>{"train.py:9"});
}

// What the numbers that are divided by were made of: of `made` in this format, by 4.
std::string divided_by(DType made, double factor) {
  TraceBuilder t;
  t.in("");
  const Handle n = t.op("sum", {{"self", t.value(finite(32).as(made).range(0, 1))}}, finite().as(made).range(0, 9).zeros(1));
  const Handle y = t.op("_to_copy", {{"self", n}}, finite().range(0, 9).zeros(1));
  const Handle by = t.op("mul", {{"self", y}}, finite().range(0, 36).zeros(1), {{"other", factor}});
  t.mark(TensorRole::kLoss, "loss", t.op("div", {{"self", t.value(finite().range(1, 2))}, {"other", by}}, finite().inf(1)));
  t.end_step();
  return advice_of(analysis_of(t).findings.at(0));
}

// An optimizer's division by 1 less `factor`, a number in this format.
std::string divided_by_1_less(double factor, DType format) {
  TraceBuilder t;
  t.in("", Phase::kOptimizer);
  const Handle beta = t.value(finite(1).as(format).range(factor, factor));
  const Numbers rest = finite(1).as(format).range(1 - factor, 1 - factor);
  const Handle by = t.op("rsub", {{"self", beta}}, factor == 1 ? finite(1).as(format).range(0, 0).zeros(1) : rest, {{"other", 1}});
  const Handle v = t.op("div", {{"self", t.value(finite().as(format).range(0, 0).zeros(8))}, {"other", by}}, finite().as(format).nan(8));
  t.mark(TensorRole::kParameter, "fc.weight", v);
  t.end_step();
  const Analysis a = analysis_of(t);
  return a.findings.empty() ? "" : advice_of(a.findings[0]);
}

TEST(Cures, of_a_difference_from_what_rounds_to_1_in_16_bits_take_it_in_fp32) {
  EXPECT_EQ(divided_by_1_less(1, DType::kBF16), "difference-in-fp32 ");
  EXPECT_EQ(divided_by_1_less(1, DType::kF16), "difference-in-fp32 ");
  EXPECT_EQ(divided_by_1_less(1, DType::kF32), "guard-denominator ");  // it was 1 before
}

TEST(Cures, of_a_division_by_counts_keep_them_at_1_or_more) {
  EXPECT_EQ(divided_by(DType::kI64, 4), "clamp-count ");
  EXPECT_EQ(divided_by(DType::kU8, 4), "clamp-count count-in-int64 ");
  EXPECT_EQ(divided_by(DType::kBF16, 4), "skip-zero-divisors ");
  EXPECT_EQ(divided_by(DType::kI64, 0.5), "skip-zero-divisors ");
}

// log of what is below 0: of `sigma`, a parameter if `trained`, past a view and a sum with another value.
Finding log_of_parameter(bool trained, bool other_trained) {
  TraceBuilder t;
  const Handle sigma = t.value(finite().range(-0.4, 1)), other = t.value(finite().range(-0.4, 1));
  if (trained) t.mark(TensorRole::kParameter, "sigma", sigma);
  if (other_trained) t.mark(TensorRole::kParameter, "offset", other);
  const Handle shown = t.in("weigh").op("expand", {{"self", sigma}}, finite().range(-0.4, 1));
  const Handle sum = t.op("add", {{"self", shown}, {"other", other}}, finite().range(-0.8, 2), {{"alpha", 1}});
  t.mark(TensorRole::kLoss, "loss", t.op("log", {{"self", sum}}, finite().nan(1)));
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Cures, of_a_parameter_that_an_update_took_below_0_make_it_positive_by_what_it_is) {
  for (const char* op : {"log", "sqrt", "pow"}) {
    for (const bool trained : {true, false}) {
      TraceBuilder t;
      const Handle sigma = t.value(finite().range(-0.4, 1));
      if (trained) t.mark(TensorRole::kParameter, "sigma", sigma);
      t.mark(TensorRole::kLoss, "loss", t.in("weigh").op(op, {{"self", sigma}}, finite().nan(1), {{"exponent", 0.5}}));
      t.end_step();
      EXPECT_EQ(advice_of(analysis_of(t).findings.at(0)), trained ? "learn-logarithm " : "clamp-input ") << op;
    }
  }
  EXPECT_EQ(advice_of(log_of_parameter(true, true)), "learn-logarithm ");
  EXPECT_EQ(advice_of(log_of_parameter(true, false)), "clamp-input ");
}

}  // namespace
}  // namespace nanhunt
