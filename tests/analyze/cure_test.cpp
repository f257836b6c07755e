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
  EXPECT_EQ(advice_of(narrow), "clamp-input fp32-compute bf16 ");
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

}  // namespace
}  // namespace nanhunt
