// SPDX-License-Identifier: Apache-2.0
// Rule underflow in both its halves: a denominator lost to 0, and optimizer state lost without any NaN.
#include <gtest/gtest.h>

#include "src/analyze/rules/origin/underflow.h"
#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

// x / sqrt(sum(d * d)) over rows of 8, without a guard. Of `zero_rows` rows d is exactly 0; the squares of
// `flushed_rows` rows vanish.
Analysis normalise(std::int64_t zero_rows, std::int64_t flushed_rows, DType dtype = DType::kF16) {
  TraceBuilder t;
  const std::int64_t rows = zero_rows + flushed_rows;
  t.in("norm");
  const Handle d = t.value(finite(64).as(dtype).zeros(8 * zero_rows));
  const Handle q = t.op("mul", {{"self", d}, {"other", d}},
                        finite(64).as(dtype).zeros(8 * rows).flushed(8 * flushed_rows).range(0, 1));
  const Handle s = t.op("sum", {{"self", q}}, finite(8).as(dtype).zeros(rows).range(0, 1));
  const Handle r = t.op("sqrt", {{"self", s}}, finite(8).as(dtype).zeros(rows).range(0, 1));
  Numbers out = finite(64).as(dtype);
  if (rows > 0) out = out.nan(8 * zero_rows).inf(8 * flushed_rows);
  const Handle y = t.op("div", {{"self", d}, {"other", r}}, out);
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

TEST(Underflow, of_a_denominator_is_told_from_a_true_zero) {
  EXPECT_EQ(table(normalise(0, 2)), "underflow | div | norm | forward | step 0 | appear | observed\n");
  EXPECT_EQ(table(normalise(2, 0)), "divide_by_zero | div | norm | forward | step 0 | appear | observed\n");
  EXPECT_EQ(table(normalise(5, 1)), "divide_by_zero | div | norm | forward | step 0 | appear | observed\n");
  EXPECT_EQ(table(normalise(0, 0)), "clean\n");
}

// x / expand(max(norm(x), constant)): the denominator is shown to each element by a view that no op made.
std::string expanded(double constant, std::int64_t zeros) {
  TraceBuilder t;
  t.in("norm");
  const Handle x = t.value(finite(64).as(DType::kF16).zeros(8));
  const Handle length = t.op("norm", {{"self", x}}, finite(8).as(DType::kF16).zeros(1).range(0, 1));
  const Handle least =
      t.op("clamp_min", {{"self", length}}, finite(8).as(DType::kF16).zeros(zeros).range(0, 1), {{"min", constant}});
  const Numbers rows = finite().shape({8, 8}).strides({1, 0}).as(DType::kF16).zeros(8 * zeros).range(0, 1);
  const Handle shown = t.seen_as(least, rows, least.id);
  const Handle y = t.op("div", {{"self", x}, {"other", shown}}, finite(64).as(DType::kF16).nan(8 * zeros));
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return table(analysis_of(t));
}

TEST(Underflow, of_a_guard_is_seen_through_a_view_of_the_denominator) {
  EXPECT_EQ(expanded(1e-12, 1), "eps_underflow | div | norm | forward | step 0 | appear | observed\n");
  EXPECT_EQ(expanded(1e-3, 0), "clean\n");
}

// x / max_(norm(x), c), where c is a tensor of one number in fp32, or x / (norm(x) - c).
std::string guarded_by_tensor(double constant, std::int64_t zeros, const char* op = "clamp_min_", const char* slot = "min") {
  TraceBuilder t;
  t.in("norm");
  const Handle x = t.value(finite(64).as(DType::kF16).zeros(8));
  const Handle length = t.op("norm", {{"self", x}}, finite(8).as(DType::kF16).zeros(1).range(0, 1));
  const Handle c = t.op("scalar_tensor", {}, finite(1).range(constant, constant), {{"s", constant}});
  const Handle least = t.op(op, {{"self", length}, {slot, c}}, finite(8).as(DType::kF16).zeros(zeros).range(0, 1));
  const Handle y = t.op("div", {{"self", x}, {"other", least}}, finite(64).as(DType::kF16).nan(8 * zeros));
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return table(analysis_of(t));
}

TEST(Underflow, of_a_guard_that_is_a_tensor_of_one_number_is_seen) {
  const std::string lost = "eps_underflow | div | norm | forward | step 0 | appear | observed\n";
  const std::string exact = "divide_by_zero | div | norm | forward | step 0 | appear | observed\n";
  EXPECT_EQ(guarded_by_tensor(1e-8, 1), lost);
  EXPECT_EQ(guarded_by_tensor(1e-8, 1, "add_", "other"), lost);
  EXPECT_EQ(guarded_by_tensor(1e-8, 1, "sub_", "other"), exact);
  EXPECT_EQ(guarded_by_tensor(0, 1), exact);
  EXPECT_EQ(guarded_by_tensor(1e-3, 0), "clean\n");
}

// x / y, whose diagonal was filled with 1 through a view: its zeros beside it are no lost guard.
TEST(Underflow, of_a_constant_is_not_seen_in_zeros_beside_the_part_that_it_was_written_into) {
  TraceBuilder t;
  t.in("gaps");
  const Handle x = t.value(finite().shape({4, 4}));
  Handle whole = t.op("sub", {{"self", x}, {"other", x}}, finite().shape({4, 4}).zeros(16).range(0, 0));
  Handle diagonal = t.seen_as(whole, finite().shape({4}).strides({5}).zeros(4).range(0, 0), whole.id);
  t.in_place("fill_", diagonal, {}, finite().shape({4}).strides({5}).range(1, 1), {{"value", 1}});
  whole = t.seen_as(diagonal, finite().shape({4, 4}).zeros(12).range(0, 1), diagonal.id);
  t.mark(TensorRole::kLoss, "loss", t.op("div", {{"self", x}, {"other", whole}}, finite().shape({4, 4}).inf(12)));
  EXPECT_EQ(table(analysis_of(t)), "divide_by_zero | div | gaps | forward | step 0 | appear | observed\n");
}

TEST(Underflow, of_a_cast_is_seen_in_the_zeros_it_added) {
  TraceBuilder t;
  t.in("q");
  const Handle x = t.value(finite().range(0, 1));
  const Handle h = t.op("_to_copy", {{"self", x}}, finite().as(DType::kF16).zeros(2).range(0, 1));
  t.mark(TensorRole::kLoss, "loss", t.op("reciprocal", {{"self", h}}, finite().as(DType::kF16).inf(2)));
  EXPECT_EQ(table(analysis_of(t)), "underflow | reciprocal | q | forward | step 0 | appear | observed\n");
}

// Steps of a second moment: of 100 elements with a gradient `flushed` are stored as 0.
Analysis second_moment(const std::vector<std::int64_t>& flushed, std::vector<std::string> paths = {"fc1.weight"}) {
  TraceBuilder t;
  for (std::int64_t lost : flushed) {
    for (const std::string& path : paths) {
      Handle v = t.value(finite(120).as(DType::kF16).zeros(120));
      t.mark(TensorRole::kState, path + ".exp_avg_sq", v);
      const Handle g = t.value(finite(120).as(DType::kF16).zeros(20));
      t.in(path, Phase::kOptimizer);
      t.in_place("addcmul_", v, {{"tensor1", g}, {"tensor2", g}},
                 finite(120).as(DType::kF16).zeros(20 + lost).flushed(lost), {{"value", 1e-3}});
      t.mark(TensorRole::kState, path + ".exp_avg_sq", v);
    }
    t.end_step();
  }
  return analysis_of(t);
}

TEST(Underflow, of_second_moments_is_a_warning_at_the_op_that_stores_them) {
  const Analysis a = second_moment({0, 40, 60}, {"fc1.weight", "fc2.weight"});
  EXPECT_EQ(table(a), "warning underflow | addcmul_ | fc1.weight | optimizer | step 1 | unknown | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(a.verdict.origin, "F1");
  EXPECT_EQ(a.findings[0].occurrence_count, 2u);
  EXPECT_EQ(a.findings[0].last_step, 2u);
  EXPECT_EQ(a.findings[0].also, std::vector<std::string>{"fc2.weight"});
  EXPECT_EQ(a.findings[0].title,
            "40% of the non-zero gradients of fc1.weight are squared to 0 in fp16: fc1.weight.exp_avg_sq loses them");
  EXPECT_NE(a.findings[0].evidence.at(1).find("At worst 60%"), std::string::npos);
}

TEST(Underflow, of_second_moments_is_silent_up_to_its_threshold) {
  EXPECT_EQ(table(second_moment({0, 0, 0})), "clean\n");
  EXPECT_EQ(table(second_moment({1})), "clean\n");  // exactly kFlushedShare
  EXPECT_EQ(analyze::kFlushedShare, 0.01);
  EXPECT_EQ(second_moment({2}).verdict.status, VerdictStatus::kWarning);
}

TEST(Underflow, inside_a_fused_optimizer_is_seen_in_zeros_that_the_gradient_does_not_have) {
  for (const std::int64_t lost : {0, 30}) {
    TraceBuilder t;
    Handle v = t.value(finite(100).as(DType::kF16).zeros(100));
    const Handle g = t.value(finite(100).as(DType::kF16).zeros(20));
    t.in("fc1.weight", Phase::kOptimizer);
    const Handle out = t.op("_fused_adam_", {{"exp_avg_sq", v, ArgRole::kOverwritten}, {"grad", g}},
                            finite(100).as(DType::kF16).zeros(20 + lost), {{"eps", 1e-8}}, "exp_avg_sq");
    t.mark(TensorRole::kState, "fc1.weight.exp_avg_sq", out);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)),
              lost == 0 ? "clean\n"
                        : "warning underflow | _fused_adam_ | fc1.weight | optimizer | step 0 | unknown | observed\n");
  }
}

TEST(Underflow, outside_the_optimizer_is_not_judged_as_state) {
  TraceBuilder t;
  const Handle g = t.value(finite(100));
  Handle v = t.value(finite(100));
  t.in("m").in_place("addcmul_", v, {{"tensor1", g}, {"tensor2", g}}, finite(100).zeros(50).flushed(50));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

}  // namespace
}  // namespace nanhunt
