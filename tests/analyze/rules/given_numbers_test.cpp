// SPDX-License-Identifier: Apache-2.0
// A number that the program gives to an op: the learning rate, a factor, a limit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
constexpr double kInf = std::numeric_limits<double>::infinity();

// One update of a weight: w += alpha * g.
Analysis updated(double alpha, const Numbers& out) {
  TraceBuilder t;
  Handle w = t.value(finite(8).range(-1, 1));
  t.mark(TensorRole::kParameter, "fc.weight", w);
  const Handle g = t.in("fc", Phase::kBackward).op("addmm_backward", {{"grad_output", t.value(finite(8))}}, finite(8));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.in("fc.weight", Phase::kOptimizer).in_place("add_", w, {{"other", g}}, out, {{"alpha", alpha}});
  t.mark(TensorRole::kParameter, "fc.weight", w);
  t.end_step();
  return analysis_of(t);
}

// PyTorch writes a NaN where a determinant is below 0, in a program that has read a NaN before, or the program writes it.
Finding written_twice(bool determinant) {
  TraceBuilder t;
  std::vector<In> read;
  for (int step = 0; step < 2; ++step) {
    t.in("mix").called_from("m.py:3");
    const Handle a = t.value(finite(16));
    const Handle log = t.op(determinant ? "_linalg_slogdet" : "relu", {{"A", a}}, finite(1), {}, determinant ? "logabsdet" : "out");
    const Handle below = t.op("eq", {{"self", log}}, finite(1), {{"other", -1}});
    const Handle nan = t.op("scalar_tensor", read, finite(1).nan(1), {{"s", std::nan("")}});
    const Handle loss = t.op("where", {{"condition", below, ArgRole::kMask}, {"self", nan}, {"other", log}}, finite(1).nan(1));
    t.mark(TensorRole::kLoss, "loss", loss);
    t.end_step();
    read = {{"s", loss}};
  }
  return analysis_of(t).findings.at(0);
}

TEST(GivenNumbers, a_nan_of_pytorchs_own_is_none_that_was_read_before) {
  const Finding f = written_twice(true);
  EXPECT_EQ(f.title, "logdet in mix: the determinant is negative");
  EXPECT_EQ(f.part_of, "logdet");
  EXPECT_EQ(f.place.op, "scalar_tensor");
  EXPECT_EQ(f.occurrence_count, 2u);
  EXPECT_EQ(f.bad_steps.anew, 2u);
  const Finding own = written_twice(false);
  EXPECT_EQ(own.part_of, "");
  EXPECT_EQ(own.bad_steps.anew, 1u);
}

TEST(GivenNumbers, an_infinite_learning_rate_is_no_overflow) {
  for (const Numbers& out : {finite(8).inf(8), finite(8).inf(7).nan(1)}) {
    const Analysis a = updated(-kInf, out);
    ASSERT_EQ(table(a), "invalid | add_ | fc.weight | optimizer | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, "add_ in the update of fc.weight is given an infinite number: alpha = -Inf");
    EXPECT_EQ(a.findings[0].advice.at(0).id, "check-lr");
  }
  EXPECT_EQ(updated(std::nan(""), finite(8).nan(8)).findings.at(0).title,
            "add_ in the update of fc.weight is given NaN: alpha = NaN");
  EXPECT_EQ(table(updated(-0.1, finite(8))), "clean\n");
}

TEST(GivenNumbers, a_finite_learning_rate_that_is_too_large_still_overflows) {
  EXPECT_EQ(table(updated(-3e38, finite(8).inf(8))),
            "overflow | add_ | fc.weight | optimizer | step 0 | appear | observed\n");
}

TEST(GivenNumbers, an_infinite_factor_of_forward_is_the_programs) {
  TraceBuilder t;
  const Handle x = t.value(finite(8).range(1, 2));
  t.in("net", Phase::kForward);
  const Handle y = t.op("addcmul", {{"self", x}, {"tensor1", x}, {"tensor2", x}}, finite(8).inf(8), {{"value", kInf}});
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(table(a), "invalid | addcmul | net | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[0].title, "addcmul in net is given an infinite number: value = Inf");
  EXPECT_EQ(a.findings[0].advice.at(0).id, "guard-value");
}

// Weight decay: w *= factor, as AdamW does it before its update.
Analysis decayed(double factor, const Numbers& out, bool of_weight = true) {
  TraceBuilder t;
  Handle w = t.value(finite(8).range(-1, 1));
  t.mark(TensorRole::kParameter, of_weight ? "fc.weight" : "fc.other", w);
  t.in("fc.weight", Phase::kOptimizer).in_place("mul_", w, {}, out, {{"other", factor}});
  t.mark(TensorRole::kParameter, of_weight ? "fc.weight" : "fc.other", w);
  t.end_step();
  return analysis_of(t);
}

TEST(GivenNumbers, of_weight_decay_are_called_by_the_learning_rate_that_they_are_made_of) {
  const Analysis a = decayed(-kInf, finite(8).inf(4).neg_inf(4));
  ASSERT_EQ(table(a), "invalid | mul_ | fc.weight | optimizer | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[0].title,
            "mul_ in the update of fc.weight is given an infinite number: 1 - lr * weight_decay = -Inf");
  EXPECT_NE(a.findings[0].explanation.find("the learning rate is infinite"), std::string::npos);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "check-lr");
  EXPECT_EQ(decayed(kInf, finite(8).inf(8)).findings.at(0).title,
            "mul_ in the update of fc.weight is given an infinite number: other = Inf");  // no rate above 0 makes it
  EXPECT_EQ(table(decayed(0.9, finite(8))), "clean\n");
}

}  // namespace
}  // namespace nanhunt
