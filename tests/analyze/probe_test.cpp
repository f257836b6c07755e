// SPDX-License-Identifier: Apache-2.0
// Counterfactuals: where they agree with the rule the class is proved, where they contradict it they decide, and where
// they could not be computed nothing changes.
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

constexpr std::int64_t kBad = 2;

ProbeRecord probe(ProbeMode mode, DType dtype, std::int64_t inf, std::uint32_t ops = 1) {
  ProbeRecord record;
  record.mode = mode;
  record.dtype = dtype;
  record.ops = ops;
  record.ran = true;
  record.pos_inf = inf;
  record.flat_index = 3;
  record.number = inf == 0 ? 70123 : std::numeric_limits<double>::infinity();
  return record;
}
const ProbeRecord kSame = probe(ProbeMode::kSame, DType::kF16, kBad);
ProbeRecord alone(DType dtype, bool finite) { return probe(ProbeMode::kWider, dtype, finite ? 0 : kBad); }
ProbeRecord slice(DType dtype, bool finite) { return probe(ProbeMode::kWider, dtype, finite ? 0 : kBad, 4); }

// mul overflows fp16: the rule says overflow.
Analysis overflow(const std::vector<ProbeRecord>& probes) {
  TraceBuilder t;
  const Handle x = t.value(finite().as(DType::kF16).range(-300, 300));
  const Handle y = t.in("act").op("mul", {{"self", x}, {"other", x}}, finite().as(DType::kF16).inf(kBad));
  for (const ProbeRecord& record : probes) t.probe(record);
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

// 1 / x at a zero of x, which an exact subtraction made: the rule says divide_by_zero.
Analysis pole(DType dtype, const std::vector<ProbeRecord>& probes) {
  TraceBuilder t;
  const Handle a = t.value(finite().as(dtype).range(1, 2));
  const Handle d =
      t.in("n").op("sub", {{"self", a}, {"other", a}}, finite().as(dtype).zeros(kBad).range(0, 1), {{"alpha", 1.0}});
  const Handle r = t.op("reciprocal", {{"self", d}}, finite().as(dtype).inf(kBad));
  for (const ProbeRecord& record : probes) t.probe(record);
  t.mark(TensorRole::kLoss, "loss", r);
  t.end_step();
  return analysis_of(t);
}

// log(x + 1e-10) in fp16: the rule says eps_underflow.
Analysis lost_eps(const std::vector<ProbeRecord>& probes) {
  TraceBuilder t;
  const Handle p = t.value(finite().as(DType::kF16).zeros(kBad).range(0, 1));
  const Handle s =
      t.in("n").op("add", {{"self", p}}, finite().as(DType::kF16).zeros(kBad).range(0, 1), {{"other", 1e-10}});
  const Handle l = t.op("log", {{"self", s}}, finite().as(DType::kF16).neg_inf(kBad));
  for (const ProbeRecord& record : probes) t.probe(record);
  t.mark(TensorRole::kLoss, "loss", l);
  t.end_step();
  return analysis_of(t);
}

bool says(const Analysis& a, const std::string& words) {
  for (const std::string& line : a.findings.at(0).evidence) {
    if (line.find(words) != std::string::npos) return true;
  }
  return false;
}

TEST(Probes, prove_an_overflow_that_is_finite_in_fp32) {
  const Analysis a = overflow({kSame, alone(DType::kF32, true), alone(DType::kF64, true)});
  EXPECT_EQ(table(a), "overflow | mul | act | forward | step 0 | appear | proved\n");
  EXPECT_TRUE(says(a, "the op gives the same bits"));
  EXPECT_TRUE(says(a, "The op alone in fp32 and in fp64: every result is finite, at [3] it is 70123."));
  EXPECT_EQ(table(overflow({})), "overflow | mul | act | forward | step 0 | appear | observed\n");
}

TEST(Probes, prove_a_pole_that_stays_in_fp64_and_leave_fp32_slices_of_fp64_aside) {
  const std::string proved = "divide_by_zero | reciprocal | n | forward | step 0 | appear | proved\n";
  EXPECT_EQ(table(pole(DType::kF32, {probe(ProbeMode::kSame, DType::kF32, kBad), alone(DType::kF64, false)})), proved);
  EXPECT_EQ(table(pole(DType::kF32, {probe(ProbeMode::kSame, DType::kF32, kBad), alone(DType::kF64, false),
                                     slice(DType::kF64, true)})),
            proved);
  EXPECT_EQ(table(pole(DType::kF16, {kSame, alone(DType::kF32, false), slice(DType::kF32, false),
                                     alone(DType::kF64, false), slice(DType::kF64, false)})),
            proved);
}

TEST(Probes, prove_a_lost_guard_when_the_slice_is_finite_in_fp32) {
  EXPECT_EQ(table(lost_eps({kSame, alone(DType::kF32, false), slice(DType::kF32, true), alone(DType::kF64, false)})),
            "eps_underflow | log | n | forward | step 0 | appear | proved\n");
}

TEST(Probes, show_an_underflow_where_a_slice_in_fp32_keeps_what_fp16_lost) {
  const Analysis a =
      pole(DType::kF16, {kSame, alone(DType::kF32, false), slice(DType::kF32, true), alone(DType::kF64, false)});
  EXPECT_EQ(table(a), "underflow | reciprocal | n | forward | step 0 | appear | proved\n");
  EXPECT_FALSE(a.findings[0].advice.empty());
}

TEST(Probes, show_a_pole_where_the_slice_is_not_finite_in_fp32_either) {
  EXPECT_EQ(table(lost_eps({kSame, alone(DType::kF32, false), slice(DType::kF32, false), alone(DType::kF64, false)})),
            "divide_by_zero | log | n | forward | step 0 | appear | proved\n");
}

TEST(Probes, show_an_overflow_where_the_op_alone_is_finite_in_a_wider_format) {
  EXPECT_EQ(table(pole(DType::kF16, {kSame, alone(DType::kF32, true)})),
            "overflow | reciprocal | n | forward | step 0 | appear | proved\n");
}

TEST(Probes, show_what_cannot_be_reproduced) {
  const Analysis a = overflow({probe(ProbeMode::kSame, DType::kF16, 0)});
  EXPECT_EQ(table(a), "not_reproducible | mul | act | forward | step 0 | appear | proved\n");
  EXPECT_EQ(a.findings[0].title, "mul in act was not finite in the run, and is finite when it is computed again");
}

TEST(Probes, conclude_nothing_where_the_op_could_not_be_computed_again) {
  ProbeRecord refused = kSame;
  refused.ran = false;
  const Analysis a = overflow({refused, alone(DType::kF32, true)});
  EXPECT_EQ(table(a), "overflow | mul | act | forward | step 0 | appear | observed\n");
  EXPECT_TRUE(says(a, "nothing can be concluded"));
  EXPECT_EQ(table(overflow({alone(DType::kF32, true)})),
            "overflow | mul | act | forward | step 0 | appear | observed\n");
  EXPECT_EQ(table(overflow({kSame})), "overflow | mul | act | forward | step 0 | appear | observed\n");
}

TEST(Probes, of_other_ops_change_nothing) {
  TraceBuilder t;
  const Handle x = t.value(finite().as(DType::kF16).range(-300, 300));
  const Handle y = t.in("act").op("mul", {{"self", x}, {"other", x}}, finite().as(DType::kF16).inf(kBad));
  const Handle z = t.op("neg", {{"self", y}}, finite().as(DType::kF16).neg_inf(kBad));
  t.probe(probe(ProbeMode::kSame, DType::kF16, 0));
  t.mark(TensorRole::kLoss, "loss", z);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "overflow | mul | act | forward | step 0 | appear | observed\n");
}

}  // namespace
}  // namespace nanhunt
