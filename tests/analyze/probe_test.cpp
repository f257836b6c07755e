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

// A compiled graph, heard as one op, that gave an infinity: the rule says unexplained.
Analysis graph(const ProbeRecord& probe) {
  TraceBuilder t;
  const Handle x = t.value(finite().range(-1, 1));
  const Handle y = t.in("net").op("compiled_graph", {{"inputs", x}}, finite().inf(kBad));
  t.probe(probe);
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

TEST(Probes, show_a_compiled_kernel_that_computes_otherwise_than_its_operations) {
  const Analysis a = graph(probe(ProbeMode::kOtherKernel, DType::kF32, 0));
  EXPECT_EQ(table(a), "kernel_dependent | compiled_graph | net | forward | step 0 | appear | proved\n");
  EXPECT_NE(a.findings.at(0).explanation.find("at [3] it is 70123"), std::string::npos) << a.findings.at(0).explanation;
}

TEST(Probes, say_of_a_compiled_graph_why_it_was_not_opened_and_what_to_set_where_a_cache_had_it) {
  ProbeRecord closed = probe(ProbeMode::kOtherKernel, DType::kF32, 0);
  closed.ran = false;
  const Analysis a = graph(closed);
  EXPECT_EQ(table(a), "unexplained | compiled_graph | net | forward | step 0 | appear | inferred\n");
  EXPECT_TRUE(says(a, "it came out of a cache"));
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "compile-cache-off");
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

// exp overflows fp16: the rule advises fp32, bf16, and to clamp its argument.
Analysis tried_remedies(const std::vector<std::pair<std::string, bool>>& trials) {
  TraceBuilder t;
  const Handle x = t.value(finite().as(DType::kF16).range(-12, 12));
  const Handle y = t.in("act").op("exp", {{"self", x}}, finite().as(DType::kF16).inf(kBad));
  t.probe(kSame);
  for (const auto& [text, is_finite] : trials) {
    ProbeRecord record = probe(ProbeMode::kRemedy, DType::kF16, is_finite ? 0 : kBad);
    record.flat_index = -1;
    t.probe(record, text);
  }
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  return analysis_of(t);
}

std::string advice_of(const Analysis& a) {
  const char* const words[] = {"worked", "finite", "not tried", "failed"};
  std::string text;
  for (const Advice& one : a.findings.at(0).advice)
    text += one.id + ": " + words[static_cast<int>(tried(one))] + "\n";
  return text;
}

TEST(Remedies, that_were_not_tried_are_advised_as_the_rule_has_them) {
  EXPECT_EQ(advice_of(tried_remedies({})), "fp32-compute: not tried\nbf16: not tried\nclamp-input: not tried\n");
}

TEST(Remedies, that_came_out_finite_go_first_and_those_that_did_not_are_no_advice) {
  const Analysis a = tried_remedies({{"clamp-input: exp(x.clamp(max=11.08))", false}, {"fp32-compute: exp in fp32; forward and backward", true}});
  EXPECT_EQ(advice_of(a), "fp32-compute: finite\nbf16: not tried\nclamp-input: failed\n");
  EXPECT_EQ(a.findings[0].advice[0].evidence, "tried on these numbers: exp in fp32; forward and backward: finite, at most 70123");
  EXPECT_EQ(a.findings[0].advice[0].text, "Run this op, or this layer, in fp32. Tried here: exp in fp32.");
  EXPECT_EQ(a.findings[0].advice[2].evidence, "tried on these numbers: exp(x.clamp(max=11.08)): not finite");
}

TEST(Remedies, that_the_rule_did_not_think_of_are_advised_where_none_of_its_own_helps) {
  const std::vector<std::pair<std::string, bool>> none = {
      {"clamp-input: x", false}, {"fp32-compute: x", false}, {"bf16: x", false}};
  EXPECT_EQ(advice_of(tried_remedies({{"finite-constant: x", true}})),
            "fp32-compute: not tried\nbf16: not tried\nclamp-input: not tried\n");
  auto other = none;
  other.emplace_back("finite-constant: x", true);
  other.emplace_back("guard-value: x", false);
  other.emplace_back("of no table: x", true);
  EXPECT_EQ(advice_of(tried_remedies(none)), "fp32-compute: failed\nbf16: failed\nclamp-input: failed\n");
  EXPECT_EQ(advice_of(tried_remedies(other)),
            "finite-constant: finite\nfp32-compute: failed\nbf16: failed\nclamp-input: failed\n");
  other.front().second = true;
  EXPECT_EQ(advice_of(tried_remedies(other)), "clamp-input: finite\nfp32-compute: failed\nbf16: failed\n");
}

TEST(Remedies, say_no_number_but_the_one_that_was_tried) {
  TraceBuilder t;
  const Handle a = t.value(finite().range(1, 2));
  const Handle d = t.op("sub", {{"self", a}, {"other", a}}, finite().zeros(kBad).range(0, 1), {{"alpha", 1.0}});
  const Handle r = t.op("reciprocal", {{"self", d}}, finite().inf(kBad));
  t.probe(probe(ProbeMode::kSame, DType::kF32, kBad));
  t.probe(probe(ProbeMode::kRemedy, DType::kF32, 0), "guard-denominator: reciprocal(x + 1e-06)");
  t.mark(TensorRole::kLoss, "loss", r);
  t.end_step();
  EXPECT_EQ(analysis_of(t).findings.at(0).advice.at(0).text,
            "Add a small constant to the denominator, one that does not round to 0 in the number format. Tried here: "
            "reciprocal(x + 1e-06).");
}

TEST(Probes, a_softmax_under_a_logarithm_is_told_before_a_limit_that_was_tried) {
  TraceBuilder t;
  const Numbers probabilities = finite().range(0, 1).zeros(kBad);
  const Handle p = t.in("<loss>", Phase::kLoss).op("_softmax", {{"self", t.value(finite())}}, probabilities);
  const Handle y = t.op("log", {{"self", t.op("index", {{"self", p}}, probabilities)}}, finite().neg_inf(kBad));
  t.probe(probe(ProbeMode::kSame, DType::kF32, kBad));
  t.probe(probe(ProbeMode::kRemedy, DType::kF32, 0), "clamp-input: log(x.clamp(min=1e-08))");
  t.mark(TensorRole::kLoss, "loss", y);
  t.end_step();
  EXPECT_EQ(analysis_of(t).findings.at(0).advice.at(0).id, "log-softmax");
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
