// SPDX-License-Identifier: Apache-2.0
// What is said of a pole: of which function, in whose derivative, and what keeps the argument from it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

std::string advice_of(const Finding& f) {
  std::string out;
  for (const Advice& a : f.advice) out += a.id + " ";
  return out;
}

// An op of one phase whose bad result reaches the loss, or a gradient.
Analysis one_op(const std::string& op, Phase phase, const Numbers& self, const Numbers& out,
                const Scalars& scalars = {}) {
  TraceBuilder t;
  const Handle y = t.in("m", phase).op(op, {{"self", t.value(self)}}, out, scalars);
  t.mark(phase == Phase::kBackward ? TensorRole::kBoundaryGradient : TensorRole::kLoss, "fc.weight", y);
  t.end_step();
  return analysis_of(t);
}

TEST(Poles, of_the_gamma_functions_are_0_and_the_negative_whole_numbers) {
  const Numbers zeros = finite(8).range(0, 2).zeros(3);
  for (const char* op : {"lgamma", "digamma", "polygamma"}) {
    const Analysis a = one_op(op, Phase::kLoss, zeros, finite(8).inf(3));
    ASSERT_EQ(table(a), std::string("divide_by_zero | ") + op + " | m | loss | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, std::string(op) + " in m: " + op + " of 0");
    EXPECT_EQ(advice_of(a.findings[0]), "keep-above-zero ");
    EXPECT_EQ(table(one_op(op, Phase::kLoss, finite(8).range(-2.5, 2), finite(8))), "clean\n");
  }
  EXPECT_EQ(one_op("lgamma", Phase::kLoss, finite(8).range(-2, 1), finite(8).inf(1)).findings.at(0).title,
            "lgamma in m: lgamma of 0 or a negative whole number");
}

TEST(Poles, of_a_power_are_those_of_its_derivative_in_backward) {
  const Numbers zeros = finite(8).range(0, 1).zeros(2);
  const Analysis backward = one_op("pow", Phase::kBackward, zeros, finite(8).inf(2), {{"exponent", -0.5}});
  ASSERT_EQ(table(backward), "divide_by_zero | pow | m | backward | step 0 | appear | observed\n");
  EXPECT_EQ(backward.findings[0].title, "pow in m: the derivative of x ** 0.5 is infinite at 0");
  EXPECT_EQ(backward.findings[0].cause, "the derivative of x ** 0.5 is infinite at 0");
  EXPECT_EQ(advice_of(backward.findings[0]), "guard-base ");
  const Analysis forward = one_op("pow", Phase::kForward, zeros, finite(8).inf(2), {{"exponent", -1.5}});
  EXPECT_EQ(forward.findings.at(0).title, "pow in m: 0 to a negative power");
  EXPECT_EQ(advice_of(forward.findings[0]), "guard-base ");
  EXPECT_EQ(one_op("pow_backward", Phase::kBackward, zeros, finite(8).inf(2), {{"exponent", 0.5}}).findings.at(0).title,
            "pow_backward in m: the derivative of x ** 0.5 is infinite at 0");
  EXPECT_EQ(table(one_op("pow", Phase::kBackward, finite(8).range(0.25, 1), finite(8), {{"exponent", -0.5}})),
            "clean\n");
}

// Autograd makes the derivative of forward's op of plain arithmetic, at that op's line.
Finding derived(const std::string& site, const std::string& op) {
  TraceBuilder t;
  t.in("net").called_from("m.py:3");
  const Numbers numbers = finite(8).range(0, 2);
  Handle bad, x = t.value(op == "sqrt" ? finite(8).range(0, 4).zeros(1) : numbers);
  if (op == "sqrt") {
    const Handle root = t.op("sqrt", {{"self", x}}, finite(8).range(0, 2).zeros(1));
    t.op("add", {{"self", root}}, numbers, {{"other", 1e-8}});
    t.in("net", Phase::kBackward).called_from(site);
    const Handle twice = t.op("mul", {{"self", root}}, finite(8).range(0, 4).zeros(1), {{"other", 2}});
    bad = t.op("div", {{"self", t.value(numbers)}, {"other", twice}}, finite(8).nan(1));
  } else if (op == "acosh") {
    t.op("acosh", {{"self", x}}, numbers);
    t.in("net", Phase::kBackward).called_from(site);
    const Handle square = t.op("mul", {{"self", x}, {"other", x}}, numbers);
    bad = t.op("rsqrt", {{"self", t.op("sub", {{"self", square}}, finite(8).range(0, 4).zeros(1), {{"other", 1}})}}, finite(8).inf(1));
  } else {
    const auto mask = [&] { return t.op("full", {}, finite(8).neg_inf(1), {{"fill_value", -std::numeric_limits<double>::infinity()}}); };
    const Handle a = mask(), b = mask();
    t.op("logaddexp", {{"self", a}, {"other", b}}, finite(8).neg_inf(1));
    t.in("net", Phase::kBackward).called_from(site);
    bad = t.op("sub", {{"self", b}, {"other", a}}, finite(8).nan(1));
  }
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", bad);
  t.end_step();
  return analysis_of(t).findings.at(0);
}

TEST(Poles, in_a_formula_of_autograds_are_those_of_the_op_whose_derivative_it_takes) {
  const auto told = [](const std::string& op, const std::string& site = "m.py:3") {
    const Finding f = derived(site, op);
    return f.title + "; " + f.part_of;
  };
  EXPECT_EQ(told("sqrt"), "div in net: the derivative of sqrt is infinite at 0; the derivative of sqrt");
  EXPECT_EQ(told("acosh"), "rsqrt in net: the derivative of acosh is infinite at 1; the derivative of acosh");
  EXPECT_EQ(told("logaddexp"),
            "sub in net: the derivative of logaddexp turns infinities written on purpose into NaN; the derivative of logaddexp");
  EXPECT_EQ(advice_of(derived("m.py:3", "sqrt")), "eps-in-sqrt ");
  EXPECT_EQ(advice_of(derived("m.py:3", "acosh")), "clamp-above-1 ");
  // Their twins are what a program computes in a backward of its own.
  EXPECT_EQ(told("sqrt", "m.py:9"), "div in net: 0/0; ");
  EXPECT_EQ(told("acosh", "m.py:9"), "rsqrt in net: rsqrt of 0; ");
  EXPECT_EQ(told("logaddexp", "m.py:9"), "sub in net turns infinities written on purpose into NaN; ");
}

TEST(Poles, of_a_weight_of_direction_and_length_are_directions_of_zeros) {
  for (const bool empty_row : {true, false}) {
    TraceBuilder t;
    const Handle v = t.value(finite(32).shape({4, 8}).zeros(empty_row ? 8 : 0)), g = t.value(finite(4));
    t.mark(TensorRole::kParameter, "fc.weight_v", v);
    t.in("fc");
    const std::vector<Handle> w =
        t.op_with_outputs("_weight_norm_interface", {{"v", v}, {"g", g}},
                          {empty_row ? finite(32).shape({4, 8}).nan(8) : finite(32).shape({4, 8}),
                           finite(4).range(0, 2).zeros(empty_row ? 1 : 0)});
    t.mark(TensorRole::kLoss, "loss", w[0]);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (!empty_row) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    ASSERT_EQ(table(a), "divide_by_zero | _weight_norm_interface | fc | forward | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, "_weight_norm_interface in fc: a vector over its norm, 0/0");
    EXPECT_EQ(a.findings[0].evidence.at(0), "v (fc.weight_v) holds 8 zeros of 32");
    EXPECT_EQ(advice_of(a.findings[0]), "no-zero-vector ");
  }
}

// An update of Adam's in one kernel, of a weight some of whose rows have had no gradient.
TEST(Poles, of_an_optimizer_in_one_kernel_are_those_of_an_eps_of_0) {
  for (const double eps : {0.0, 1e-8}) {
    TraceBuilder t;
    Handle w = t.value(finite(8)), v = t.value(finite(8).zeros(8));
    const Handle g = t.value(finite(8).zeros(3));
    t.mark(TensorRole::kParameter, "emb.weight", w);
    t.in("emb.weight", Phase::kOptimizer);
    t.update(
        "_fused_adamw_", {{"grad", g}},
        {{"self", &w, eps == 0 ? finite(8).nan(3) : finite(8)}, {"exp_avg_sq", &v, finite(8).zeros(3).range(0, 1)}},
        {{"eps", eps}});
    t.mark(TensorRole::kParameter, "emb.weight", w);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (eps > 0) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    ASSERT_EQ(table(a), "divide_by_zero | _fused_adamw_ | emb.weight | optimizer | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, "_fused_adamw_ in the update of emb.weight divides by 0: its eps is 0");
    EXPECT_EQ(advice_of(a.findings[0]), "optimizer-eps ");
  }
}

TEST(Poles, of_an_optimizer_made_of_ops_are_those_of_the_eps_that_it_adds) {
  const auto updated = [](std::optional<double> eps) {
    TraceBuilder t;
    Handle w = t.value(finite(8)), m = t.value(finite(8).zeros(3)), v = t.value(finite(8).zeros(3).range(0, 1));
    t.mark(TensorRole::kParameter, "emb.weight", w);
    t.mark(TensorRole::kState, "emb.weight.exp_avg", m);
    t.mark(TensorRole::kState, "emb.weight.exp_avg_sq", v);
    t.in("emb.weight", Phase::kOptimizer);
    const bool bare = eps.value_or(0) == 0;
    const Numbers root = finite(8).range(0, 1).zeros(bare ? 3 : 0);
    Handle d = t.op("sqrt", {{"self", v}}, finite(8).range(0, 1).zeros(3));
    d = t.op("div", {{"self", d}}, finite(8).range(0, 1).zeros(3), {{"other", 0.03}});
    if (eps) t.in_place("add_", d, {}, root, {{"other", *eps}});
    t.in_place("addcdiv_", w, {{"tensor1", m}, {"tensor2", d}}, bare ? finite(8).nan(3) : finite(8),
               {{"value", -1e-3}});
    t.mark(TensorRole::kParameter, "emb.weight", w);
    t.end_step();
    return analysis_of(t);
  };
  const Analysis zero = updated(0.0), none = updated(std::nullopt);
  EXPECT_EQ(table(zero), "divide_by_zero | addcdiv_ | emb.weight | optimizer | step 0 | appear | observed\n");
  EXPECT_EQ(zero.findings.at(0).title, "addcdiv_ in the update of emb.weight: 0/0, for Adam's eps is 0");
  EXPECT_EQ(none.findings.at(0).title, "addcdiv_ in the update of emb.weight: 0/0, for the optimizer adds no eps");
  for (const Analysis* a : {&zero, &none}) EXPECT_EQ(advice_of(a->findings[0]), "optimizer-eps ");
  EXPECT_EQ(table(updated(1e-8)), "clean\n");
}

// log(1 - clamp(p, max)): what the clamp lets through is at most `top`.
Analysis clamped(DType format, double max, double top, bool zero, bool cast = false) {
  TraceBuilder t;
  t.in("<loss>", Phase::kLoss);
  const Numbers probability = finite(8).as(cast ? DType::kF32 : format).range(0.5, cast ? static_cast<float>(max) : top);
  Handle p =
      t.op("clamp", {{"self", t.value(finite(8).as(format).range(0, 1))}}, probability, {{"min", 1e-8}, {"max", max}});
  if (cast) p = t.op("_to_copy", {{"self", p}}, finite(8).as(format).range(0.5, top));
  const Numbers rest = finite(8).as(format).range(1 - top, 0.5).zeros(zero ? 2 : 0);
  const Handle q = t.op("rsub", {{"self", p}}, rest, {{"other", 1}, {"alpha", 1}});
  const Handle y = t.op("log", {{"self", q}}, zero ? finite(8).as(format).neg_inf(2) : finite(8).as(format));
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

TEST(Poles, that_a_rounded_limit_of_a_clamp_leads_to_are_laid_on_the_limit) {
  const Analysis single = clamped(DType::kF32, 1 - 1e-8, 1, true);
  ASSERT_EQ(table(single), "eps_underflow | log | <loss> | loss | step 0 | appear | observed\n");
  EXPECT_EQ(single.findings[0].title, "clamp(max = 1 - 1e-8) is 1 in fp32: log of 0 in <loss>");
  EXPECT_EQ(single.findings[0].cause, "clamp(max = 1 - 1e-8): in fp32 that is 1");
  EXPECT_EQ(advice_of(single.findings[0]), "held-bound ");
  EXPECT_EQ(clamped(DType::kF16, 1 - 1e-4, 1, true).findings.at(0).title,
            "clamp(max = 1 - 0.0001) is 1 in fp16: log of 0 in <loss>");
  EXPECT_EQ(clamped(DType::kF16, 1 - 1e-4, 1, true, true).findings.at(0).title,
            "clamp(max = 1 - 0.0001) is 1 in fp16: log of 0 in <loss>");
  // A limit that is 1 itself, or that the format holds, is none that rounds.
  EXPECT_EQ(clamped(DType::kF32, 1, 1, true).findings.at(0).title, "log in <loss>: log of 0");
  EXPECT_EQ(clamped(DType::kF32, 0.75, 0.75, true).findings.at(0).title, "log in <loss>: log of 0");
  EXPECT_EQ(table(clamped(DType::kF32, 1 - 1e-6, 1 - 1e-6, false)), "clean\n");
}

TEST(Poles, of_an_inverse_function_at_a_rounded_limit_are_laid_on_the_limit) {
  for (const bool low : {true, false}) {
    TraceBuilder t;
    const Numbers all = finite(8).as(DType::kF16).range(-1, 1);
    const Handle x = t.in("m").op("clamp", {{"self", t.value(all)}}, all,
                                  {{"min", low ? 1e-5 - 1 : -2}, {"max", low ? 2 : 1 - 1e-5}});
    t.mark(TensorRole::kLoss, "loss", t.op("atanh", {{"self", x}}, low ? all.neg_inf(1) : all.inf(1)));
    t.end_step();
    EXPECT_EQ(analysis_of(t).findings.at(0).title, low ? "clamp(min = 1e-5 - 1) is -1 in fp16: atanh of 1 or -1 in m"
                                                       : "clamp(max = 1 - 1e-5) is 1 in fp16: atanh of 1 or -1 in m");
  }
}

// The first bad element as recorded: of what is written over nothing is, and of a number of Python's neither.
std::vector<std::string> met(const std::string& op, bool in_place, double number, double result,
                             const Scalars& scalars) {
  TraceBuilder t;
  Handle out = t.value(finite(8).zeros(1));
  const Handle y = t.value(finite(8).zeros(1).range(0, 1));
  t.in("m");
  const Numbers made = std::isnan(result) ? finite(8).nan(1).first_at(0) : finite(8).inf(1).first_at(0);
  if (in_place) {
    t.in_place(op, out, {{"other", y}}, made, scalars);
  } else {
    out = t.op(op, {{"self", y}}, made, scalars);
  }
  t.element(out, 0, result, {{{in_place ? "other" : "self", y}, number}});
  t.mark(TensorRole::kLoss, "loss", out);
  t.end_step();
  std::vector<std::string> slots;
  const Analysis a = analysis_of(t);
  for (const ElementEvidence::OperandValue& operand : a.findings.at(0).element.value().operands)
    slots.push_back(operand.slot + " " + std::to_string(operand.value));
  return slots;
}

TEST(Poles, are_shown_with_all_that_met) {
  using Slots = std::vector<std::string>;
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(met("pow", false, 0, inf, {{"exponent", -0.5}}), (Slots{"self 0.000000", "exponent -0.500000"}));
  EXPECT_EQ(met("div_", true, 0, nan, {}), (Slots{"self 0.000000", "other 0.000000"}));
  EXPECT_EQ(met("div_", true, 0, inf, {}), (Slots{"other 0.000000"}));  // what was divided is not known
}

TEST(DivideByZero, of_labels_whose_class_weights_are_all_zero_points_at_the_weights) {
  for (const bool weighty : {false, true}) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    const Handle labels = t.value(finite(3).as(DType::kI64).range(-100, 3));
    const Handle weight = t.value(weighty ? finite(4).range(1, 2) : finite(4).range(0, 2).zeros(1));
    const Handle l = t.op("nll_loss_forward",
                          {{"self", t.value(finite(12).range(-3, 0))},
                           {"target", labels, ArgRole::kIndex},
                           {"weight", weight}},
                          weighty ? finite(1) : finite(1).nan(1), {{"ignore_index", -100}});
    t.mark(TensorRole::kLoss, "loss", l);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (weighty) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "divide_by_zero | nll_loss_forward | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title,
              "nll_loss_forward in <loss> divides by the class weights of its labels, which are all 0");
    EXPECT_EQ(advice_of(a.findings[0]), "weigh-classes ");
  }
}

TEST(DivideByZero, by_a_sum_of_class_weights_that_labels_picked_points_at_the_weights) {
  // Given a table of weights of which some are 0, by which a loss is divided, or another sum that is 0
  for (const bool picked : {true, false}) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    const Handle table_of = t.value(picked ? finite(4).range(0, 2).zeros(1) : finite(4).range(0, 0).zeros(4));
    const Handle labels = t.value(finite(3).as(DType::kI64).range(3, 3));
    const Handle weights =
        t.op("gather", {{"self", table_of}, {"index", labels, ArgRole::kIndex}}, finite(3).range(0, 0).zeros(3));
    const Handle total = t.op("sum", {{"self", weights}}, finite(1).range(0, 0).zeros(1));
    const Handle l = t.op("div", {{"self", t.value(finite(1).range(2, 2))}, {"other", total}}, finite(1).inf(1));
    t.mark(TensorRole::kLoss, "loss", l);
    t.end_step();
    const Analysis a = analysis_of(t);
    // when it is judged, then the classes are named where classes have weights.
    ASSERT_EQ(table(a), "divide_by_zero | div | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(advice_of(a.findings[0]), picked ? "weigh-classes " : "skip-zero-divisors ");
  }
}

TEST(DivideByZero, of_a_matrix_without_an_inverse_is_that_and_no_overflow) {
  for (const auto& [op, made] : {std::pair("_linalg_slogdet", finite(1).neg_inf(1)), std::pair("_linalg_solve_ex", finite().nan(8)),
                                 std::pair("linalg_inv_ex", finite().inf(2).nan(6))}) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    t.mark(TensorRole::kLoss, "loss", t.op(op, {{"A", t.value(finite().range(0, 1))}}, made));
    t.end_step();
    const Analysis a = analysis_of(t);
    EXPECT_EQ(table(a), std::string("divide_by_zero | ") + op + " | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings.at(0).title, std::string(op) + " in <loss>: the matrix A has no inverse");
    EXPECT_EQ(advice_of(a.findings.at(0)), "regular-matrix ");
  }
}

}  // namespace
}  // namespace nanhunt
