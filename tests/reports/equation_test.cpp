// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reports/views/equation.h"

namespace nanhunt::reports {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

ElementEvidence element(double value, std::vector<ElementEvidence::OperandValue> operands) {
  ElementEvidence e;
  e.value = value;
  e.operands = std::move(operands);
  return e;
}

TEST(Equation, operations_with_a_sign_are_written_with_it) {
  EXPECT_EQ(equation_of("aten::div", element(kNaN, {{"self", "", 0}, {"other", "", 0}})), "0 / 0 = NaN");
  EXPECT_EQ(equation_of("aten::div_.Tensor", element(kInf, {{"self", "", 1}, {"other", "", 0}})), "1 / 0 = +Inf");
  EXPECT_EQ(equation_of("aten::mul", element(-kInf, {{"self", "", 173.5}, {"other", "", -837.5}})), "173.5 * (-837.5) = -Inf");
  EXPECT_EQ(equation_of("aten::sub", element(kNaN, {{"self", "", kInf}, {"other", "", kInf}})), "+Inf - +Inf = NaN");
  EXPECT_EQ(equation_of("aten::pow", element(kInf, {{"self", "", 0}, {"exponent", "", -1}})), "0 ** (-1) = +Inf");
}

TEST(Equation, a_quotient_alone_has_a_numerator_and_a_denominator) {
  EXPECT_EQ(part_of_quotient("aten::div_", "self", "input self"), "numerator");
  EXPECT_EQ(part_of_quotient("aten::div_", "other", "input other"), "denominator");
  EXPECT_EQ(part_of_quotient("aten::mul", "other", "input other"), "input other");
  EXPECT_EQ(part_of_quotient("div_backward", "self", "input self"), "input self");
}

TEST(Equation, functions_are_called_and_others_list_what_they_read) {
  EXPECT_EQ(equation_of("aten::reciprocal", element(kInf, {{"self", "", 0}})), "1 / 0 = +Inf");
  EXPECT_EQ(equation_of("aten::log", element(-kInf, {{"self", "", 0}})), "log(0) = -Inf");
  EXPECT_EQ(equation_of("sqrt_backward", element(kNaN, {{"grad_output", "", 0}, {"result", "", 0}})),
            "grad_output = 0, result = 0: NaN");
  EXPECT_EQ(equation_of("aten::add_", element(-kInf, {{"other", "", 2}})), "other = 2: -Inf");  // what is added alone
  EXPECT_EQ(equation_of("aten::addmm", element(kInf, {})), "");
  EXPECT_EQ(equation_of("aten::div", element(kNaN, {{"self", "", 0}})), "numerator = 0: NaN");  // of two, one was read
}

TEST(Equation, a_quotient_that_is_added_to_something_is_no_result) {
  const auto of = [](const char* first) {
    return equation_of("aten::_foreach_addcdiv_", element(kNaN, {{first, "", 0}, {"tensor2", "", -0.0}}));
  };
  EXPECT_EQ(of("tensor1"), "0 / (-0) is added: NaN");
  EXPECT_EQ(of("self"), "self = 0, tensor2 = -0: NaN");
}

TEST(Equation, the_line_of_code_has_the_names_of_both_sides) {
  const auto named = [](std::string_view op, std::string_view line) { return operation_in_line(op, line); };
  EXPECT_EQ(named("aten::div", "        return h.sum(1) / mask.sum(1, keepdim=True)"), "h.sum(1) / mask.sum(1, keepdim=True)");
  EXPECT_EQ(named("aten::div", "x = (a - b) / n  # a / b"), "(a - b) / n");
  EXPECT_EQ(named("aten::div", "loss = loss_sum * w / w.sum() + 1e-8"), "loss_sum * w / w.sum()");
  EXPECT_EQ(named("aten::div", "y = f('a/b', x / n)"), "x / n");
  EXPECT_EQ(named("aten::div_", "x /= x.norm() + eps"), "x / (x.norm() + eps)");
  EXPECT_EQ(named("aten::div", "y = -x / n if n else x"), "-x / n");
  EXPECT_EQ(named("aten::mul", "h = F.gelu(self.gate(h)) * self.up(h)"), "F.gelu(self.gate(h)) * self.up(h)");
  EXPECT_EQ(named("aten::sub", "return a * b - c / 2, 1"), "a * b - c / 2");
  EXPECT_EQ(named("aten::pow", "y = 2 / x ** -0.5"), "x ** -0.5");
  EXPECT_EQ(named("aten::div", "y = 1 / x ** 2"), "1 / x ** 2");
}

TEST(Equation, a_line_that_makes_the_op_in_another_way_too_names_no_sides) {
  const auto names_none = [](std::string_view op, std::string_view line) {
    EXPECT_EQ(operation_in_line(op, line), "") << line;
  };
  names_none("aten::div", "loss = (err / scale).sum().div(m.sum())");
  names_none("aten::div", "x = torch.true_divide(a, b) + c / d");
  names_none("aten::div_", "x = (c / d) + a.div_(b)");
  names_none("aten::mul", "return (h * 0.5).mul(self.gain.half()).float()");
  names_none("aten::mul", "y = torch.tan(x * 0 + 1.0).mul(1e38).mul(10)");
  names_none("aten::sub", "y = torch.subtract(a, b) - c");
  names_none("aten::add", "y = sum(losses) + decay");
  names_none("aten::pow", "y = x.square() + h ** 3");
  names_none("aten::div", "y = torch.nanmean(h) + (h / two).sum()");
  names_none("aten::sub", "y = F.kl_div(p, q) - h");
  names_none("aten::mul", "y = F.dropout(x, 0.1) * gain");
  names_none("aten::sub", "y = dist.log_prob(a) - old");
  names_none("aten::mul", "y = 2 / h + w * 3");  // of a number by a tensor: its reciprocal times the number
  EXPECT_EQ(operation_in_line("aten::div", "y = (h * 2).sum(1).sub(1).pow(2) / n"), "(h * 2).sum(1).sub(1).pow(2) / n");
  EXPECT_EQ(operation_in_line("aten::mul", "y = a * b / c"), "a * b");
}

TEST(Equation, a_line_that_divides_a_number_names_what_it_divides_it_by) {
  const auto named = [](std::string_view line) {
    return operation_in_line("aten::reciprocal", line) + "; " + divisor_in_line("aten::reciprocal", line);
  };
  EXPECT_EQ(named("factor = 0.9 * (tol / err) ** 0.5"), "tol / err; err");
  EXPECT_EQ(named("weights = len(yt) / (4 * counts)"), "len(yt) / (4 * counts); 4 * counts");
  EXPECT_EQ(named("y = 1 / (a) + (b)"), "1 / (a); a");
  EXPECT_EQ(named("y = 1 / f(a).g(b)"), "1 / f(a).g(b); f(a).g(b)");
  for (const std::string_view line : {"y = x.reciprocal()", "y = x.reciprocal() / n", "y = 1 / a + b / c",
                                      "clip_grad_norm_(model.parameters(), 1 / n)"})
    EXPECT_EQ(named(line), "; ") << line;
  EXPECT_EQ(divisor_in_line("aten::div", "y = a / b"), "");
}

TEST(Equation, a_statement_of_several_lines_names_the_sides_on_its_first_where_it_has_the_op_once) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(operation_in_line("aten::div", "loss = (a / b", Lines{"        ).sum()", "c = d / e"}), "a / b");
  EXPECT_EQ(operation_in_line("aten::div", "loss = a / b", Lines{"c = d / e"}), "a / b");
  EXPECT_EQ(operation_in_line("aten::div", "loss = (a / b", Lines{"        / c)"}), "");
  EXPECT_EQ(operation_in_line("aten::div", "    a / b", Lines{"    / c", ")"}), "");
  EXPECT_EQ(operation_in_line("aten::div", "loss = (a / b", Lines{"    ).sum().div(n)"}), "");
  EXPECT_EQ(operation_in_line("aten::div", "loss = a / b \\", Lines{"    / c"}), "");
  EXPECT_EQ(operation_in_line("aten::div", "loss = (a", Lines{"    / b)"}), "a / b");
  EXPECT_EQ(operation_in_line("aten::div", "    probs /  # of all", Lines{"    total,", ")"}), "probs / total");
  EXPECT_EQ(operation_in_line("aten::div", "    a", Lines{"    + b", "    / c", ")"}), "");  // it begins below
  EXPECT_EQ(operation_in_line("aten::div", "    a", Lines{"    / b.div(c)", ")"}), "");
  EXPECT_EQ(operation_in_line("aten::div", "loss = (a / b", Lines{"    + c"}), "");  // its end is not known
}

TEST(Equation, a_line_that_does_not_say_which_sides_met_names_none) {
  for (const std::string_view line :
       {"y = a / b / c", "y = F.normalize(x)", "y = x / F.normalize(h, eps=0.)", "y = x // 2", "y = x /", "return (", "y = f(*x)", "eps = 1e-8", "s = 'a / b",
        "def f(*, x) -> int:"}) {
    for (const std::string_view op : {"aten::div", "aten::mul", "aten::sub", "aten::pow"})
      EXPECT_EQ(operation_in_line(op, line), "") << line << " by " << op;
  }
  EXPECT_EQ(operation_in_line("aten::softmax", "y = a / b"), "");
}

}  // namespace
}  // namespace nanhunt::reports
