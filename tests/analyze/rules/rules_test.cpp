// SPDX-License-Identifier: Apache-2.0
// Each rule with its planted bug and the repaired twin, silence of which is asserted.
#include <gtest/gtest.h>

#include <cmath>

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

// The ops of a for-loop Adam for one parameter, as eager runs them.
struct AdamStep {
  DType dtype = DType::kF16;
  double eps = 1e-8;
  std::int64_t dead = 3;     // elements whose gradient is 0
  std::int64_t flushed = 2;  // elements whose square vanishes
};
void adam(TraceBuilder& t, const std::string& path, const AdamStep& o) {
  const auto num = [&](std::int64_t zeros) { return finite(8).as(o.dtype).zeros(zeros).range(0, 1); };
  Handle w = t.value(num(0)), m = t.value(num(8)), v = t.value(num(8));
  t.mark(TensorRole::kParameter, path, w);
  t.mark(TensorRole::kState, path + ".exp_avg", m);
  t.mark(TensorRole::kState, path + ".exp_avg_sq", v);
  const Handle g = t.in("fc", Phase::kBackward).op("addmm_backward", {{"grad_output", t.value(num(0))}}, num(o.dead));
  t.mark(TensorRole::kBoundaryGradient, path, g);
  t.in(path, Phase::kOptimizer);
  const std::int64_t lost = o.dtype == DType::kF16 ? o.flushed : 0;
  const std::int64_t zero_v = o.dead + lost;
  t.in_place("lerp_", m, {{"end", g}}, num(o.dead), {{"weight", 0.1}});
  t.in_place("mul_", v, {}, num(8).flushed(0), {{"other", 0.999}});
  t.in_place("addcmul_", v, {{"tensor1", g}, {"tensor2", g}}, num(zero_v).flushed(lost), {{"value", 1e-3}});
  Handle d = t.op("sqrt", {{"self", v}}, num(zero_v));
  d = t.op("div", {{"self", d}}, num(zero_v).flushed(0), {{"other", 0.0316}});
  const bool zero = round_to(o.dtype, o.eps) == 0;
  t.in_place("add_", d, {}, num(zero ? zero_v : 0), {{"other", o.eps}});
  Numbers out = num(0);
  if (zero && zero_v > 0) out = out.nan(o.dead).inf(lost);
  t.in_place("addcdiv_", w, {{"tensor1", m}, {"tensor2", d}}, out, {{"value", -1e-3}});
  if (zero && zero_v > 0) t.element(w, 1, std::nan(""), {{{"tensor1", m}, 0.0}, {{"tensor2", d}, 0.0}});
  t.mark(TensorRole::kParameter, path, w);
}

TEST(EpsUnderflow, of_adam_in_fp16_is_found_at_the_update_and_fp32_is_silent) {
  TraceBuilder bug;
  adam(bug, "fc1.weight", {});
  adam(bug, "fc1.bias", {});
  bug.end_step();
  const Analysis a = analysis_of(bug);
  EXPECT_EQ(table(a),
            "eps_underflow | addcdiv_ | fc1.weight | optimizer | step 0 | appear | observed\n"
            "warning underflow | addcmul_ | fc1.weight | optimizer | step 0 | unknown | observed\n");
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.title, "Adam's eps 1e-8 rounds to 0 in fp16: division by 0 and 0/0 in the update of fc1.weight");
  EXPECT_EQ(f.also, std::vector<std::string>{"fc1.bias"});
  EXPECT_EQ(advice_of(f), "fp32-masters fused-optimizer eps-1e-4 ");
  EXPECT_EQ(f.evidence.at(0),
            "eps 1e-8 is 0 in fp16: the smallest number fp16 keeps is 5.96e-8, and 2.98e-8 or less rounds to 0.");
  EXPECT_EQ(f.evidence.at(1), "tensor2, which add_ in fc1.weight made, holds 5 zeros of 8");
  EXPECT_EQ(f.evidence.at(2), "at [1]: tensor1 (fc1.weight.exp_avg) = 0 and tensor2 = 0 gave NaN");
  ASSERT_TRUE(f.element.has_value());
  EXPECT_EQ(f.element->flat_index, 1);
  EXPECT_EQ(f.bad_elements, 5);

  TraceBuilder fixed;
  adam(fixed, "fc1.weight", {.dtype = DType::kF32});
  fixed.end_step();
  EXPECT_EQ(table(analysis_of(fixed)), "clean\n");
}

TEST(EpsUnderflow, is_not_said_when_the_constant_survives) {
  TraceBuilder t;  // bf16 has the range for 1e-8
  adam(t, "fc1.weight", {.dtype = DType::kBF16});
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

// log(x + 1e-10), in the format given: fp16 loses the constant.
std::string log_with_guard(DType dtype, const char* op, const Scalars& guard) {
  TraceBuilder t;
  const bool lost = dtype == DType::kF16;
  const Handle p = t.value(finite().as(dtype).zeros(2).range(0, 1));
  const Handle s =
      t.in("<loss>", Phase::kLoss).op(op, {{"self", p}}, finite().as(dtype).zeros(lost ? 2 : 0).range(0, 1), guard);
  const Handle l = t.op("log", {{"self", s}}, lost ? finite().as(dtype).neg_inf(2) : finite().as(dtype));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", l}}, lost ? finite(1).neg_inf(1) : finite(1)));
  t.end_step();
  return table(analysis_of(t));
}

TEST(EpsUnderflow, of_a_guarded_log_is_found_and_fp32_is_silent) {
  const std::string found = "eps_underflow | log | <loss> | loss | step 0 | appear | observed\n";
  EXPECT_EQ(log_with_guard(DType::kF16, "add", {{"other", 1e-10}}), found);
  EXPECT_EQ(log_with_guard(DType::kF16, "clamp", {{"min", 1e-12}, {"max", 1.0}}), found);
  EXPECT_EQ(log_with_guard(DType::kF16, "sub", {{"other", -1e-10}}), found);
  EXPECT_EQ(log_with_guard(DType::kF32, "add", {{"other", 1e-10}}), "clean\n");
  EXPECT_EQ(log_with_guard(DType::kF32, "clamp", {{"min", 1e-12}, {"max", 1.0}}), "clean\n");
}

TEST(EpsUnderflow, is_found_through_a_root_and_through_an_eps_that_is_a_tensor) {
  TraceBuilder t;
  const auto h = [](std::int64_t zeros) { return finite().as(DType::kF16).zeros(zeros).range(0, 1); };
  const Handle eps = t.in("n").op("full", {}, finite(1).as(DType::kF16).zeros(1).range(0, 0), {{"fill_value", 1e-8}});
  const Handle v = t.value(h(2));
  const Handle s = t.op("add", {{"self", v}, {"other", eps}}, h(2), {{"alpha", 1}});
  const Handle r = t.op("sqrt", {{"self", s}}, h(2));
  const Handle y = t.op("div", {{"self", t.value(h(0))}, {"other", r}}, h(0).inf(2));
  t.mark(TensorRole::kLoss, "loss", y);
  EXPECT_EQ(table(analysis_of(t)), "eps_underflow | div | n | forward | step 0 | appear | observed\n");
}

TEST(EpsUnderflow, inside_a_kernel_is_judged_in_the_format_it_computes_in) {
  for (const DType compute : {DType::kF16, DType::kF32}) {
    TraceBuilder t;
    t.in("ln").computing_in(compute);
    const bool lost = compute == DType::kF16;
    const Handle y = t.op("my_layer_norm", {{"input", t.value(finite().as(DType::kF16))}},
                          lost ? finite().as(DType::kF16).nan(4) : finite().as(DType::kF16), {{"eps", 1e-12}});
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)),
              lost ? "eps_underflow | my_layer_norm | ln | forward | step 0 | appear | observed\n" : "clean\n");
  }
}

TEST(EpsUnderflow, is_not_told_of_stock_norms_and_fused_optimizers_which_add_eps_in_fp32) {
  // given stock kernels on 16-bit tensors, with an eps that these formats cannot hold
  for (const char* name : {"native_layer_norm", "native_batch_norm", "cudnn_batch_norm", "native_group_norm",
                           "rms_norm", "_fused_adam_", "_fused_adamw_"}) {
    TraceBuilder t;
    t.in("layer").computing_in(DType::kF16);
    t.op(name, {{"input", t.value(finite().as(DType::kF16))}}, finite().as(DType::kF16), {{"eps", 1e-12}});
    t.end_step();
    const Analysis analysis = analysis_of(t);
    EXPECT_EQ(table(analysis), "clean\n") << name;
    ASSERT_EQ(analysis.eps_audit.size(), 1U) << name;
    EXPECT_EQ(analysis.eps_audit[0].verdict, "ok") << name;
    EXPECT_EQ(analysis.eps_audit[0].dtype, DType::kF32) << name;
  }
}

TEST(EpsUnderflow, of_a_norm_that_computes_and_keeps_its_deviations_in_fp16_is_told) {
  for (const DType kept : {DType::kF16, DType::kF32}) {
    TraceBuilder t;
    t.in("bn").computing_in(DType::kF16);
    const bool lost = kept == DType::kF16;
    const Handle y = t.op("native_batch_norm", {{"input", t.value(finite().as(DType::kF16))}},
                          lost ? finite().as(kept).inf(2) : finite().as(kept), {{"eps", 1e-8}}, "save_invstd");
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    const Analysis analysis = analysis_of(t);
    EXPECT_EQ(table(analysis),
              lost ? "eps_underflow | native_batch_norm | bn | forward | step 0 | appear | observed\n" : "clean\n");
    ASSERT_EQ(analysis.eps_audit.size(), 1U);
    EXPECT_EQ(analysis.eps_audit[0].verdict, lost ? "zero" : "ok");
    EXPECT_EQ(analysis.eps_audit[0].dtype, kept);
  }
}

TEST(Overflow, inside_a_norm_that_computes_in_fp16_is_told_as_such_and_one_in_fp32_is_silent) {
  for (const DType compute : {DType::kF16, DType::kF32}) {
    TraceBuilder t;
    t.in("bn").computing_in(compute);
    const bool lost = compute == DType::kF16;
    const Numbers in = finite(4096).as(DType::kF16).range(-500, 4000);
    const Numbers out = finite(4096).as(DType::kF16).range(-2, 3);
    const Handle y = t.op("native_batch_norm", {{"input", t.value(in)}}, lost ? Numbers(out).nan(4096) : out);
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    const Analysis analysis = analysis_of(t);
    EXPECT_EQ(table(analysis),
              lost ? "overflow | native_batch_norm | bn | forward | step 0 | appear | observed\n" : "clean\n");
    if (!lost) continue;
    EXPECT_EQ(analysis.findings[0].title, "native_batch_norm in bn overflows fp16 inside: 4096 of 4096 results are NaN");
    EXPECT_NE(analysis.findings[0].explanation.find("one of them passes 65504"), std::string::npos);
  }
}

TEST(DivideByZero, of_the_root_of_an_exact_zero_is_found_in_backward_and_the_guarded_root_is_silent) {
  for (const bool guarded : {false, true}) {
    TraceBuilder t;
    const auto num = [&](std::int64_t zeros) { return finite().zeros(guarded ? 0 : zeros).range(0, 1); };
    const Handle d = t.in("<loss>", Phase::kLoss)
                         .op("sub", {{"self", t.value(finite())}, {"other", t.value(finite())}}, finite().zeros(1));
    const Handle q = t.op("mul", {{"self", d}, {"other", d}}, finite().zeros(1).flushed(0).range(0, 1));
    Handle s = t.op("sum", {{"self", q}}, finite().zeros(1).flushed(0).range(0, 1));
    if (guarded) s = t.op("add", {{"self", s}}, num(0), {{"other", 1e-6}});
    const Handle r = t.op("sqrt", {{"self", s}}, num(1));
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", r}}, finite(1)));
    t.in("<loss>", Phase::kBackward);
    const Handle gr = t.op("sqrt_backward", {{"grad_output", t.value(finite())}, {"result", r, ArgRole::kSaved}},
                           guarded ? finite() : finite().inf(1));
    if (!guarded) t.element(gr, 3, kInf, {{{"grad_output", gr}, 1.0}, {{"result", r}, 0.0}});
    const Handle gd =
        t.op("mul_backward", {{"grad_output", gr}, {"self", d, ArgRole::kSaved}}, guarded ? finite() : finite().nan(1));
    t.mark(TensorRole::kBoundaryGradient, "fc1.weight", gd);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (guarded) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "divide_by_zero | sqrt_backward | <loss> | backward | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, "sqrt_backward in <loss>: sqrt has no finite derivative at 0");
    EXPECT_EQ(advice_of(a.findings[0]), "builtin-norm eps-in-sqrt ");
    EXPECT_EQ(a.findings[0].first_inf->op, "sqrt_backward");
    EXPECT_EQ(a.findings[0].first_nan->op, "mul_backward");
  }
}

TEST(DivideByZero, of_a_hand_written_cross_entropy_is_the_log_and_its_derivative_is_not_a_second_fault) {
  for (const bool fused : {false, true}) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    const Handle x = t.value(finite().range(0, 200));
    if (fused) {
      t.mark(TensorRole::kLoss, "loss", t.op("log_softmax", {{"self", x}}, finite().range(-200, 0)));
      t.end_step();
      EXPECT_EQ(table(analysis_of(t)), "clean\n");
      continue;
    }
    const Handle p = t.op("softmax", {{"self", x}}, finite().zeros(2).range(0, 1));
    const Handle l = t.op("log", {{"self", p}}, finite().neg_inf(2));
    const Handle m = t.op("mul", {{"self", l}, {"other", t.value(finite().zeros(7))}}, finite().nan(2));
    t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", m}}, finite(1).nan(1)));
    t.in("<loss>", Phase::kBackward);
    const Handle g =
        t.op("log_backward", {{"grad_output", t.value(finite())}, {"self", p, ArgRole::kSaved}}, finite().inf(2));
    t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
    t.end_step(std::nan(""));
    const Analysis a = analysis_of(t);
    EXPECT_EQ(table(a), "divide_by_zero | log | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(advice_of(a.findings[0]), "log-softmax clamp-input ");
    EXPECT_NE(a.findings[0].evidence.back().find("derivative"), std::string::npos);
    EXPECT_EQ(a.findings[0].sinks, (std::vector<std::string>{"loss", "gradient of fc1.weight"}));
    EXPECT_EQ(a.findings[0].chain.nodes.back().label, "gradient of fc1.weight: 2 Inf of 8");
  }
}

TEST(DivideByZero, of_a_loss_without_any_valid_label_points_at_the_labels) {
  for (const bool labelled : {false, true}) {
    TraceBuilder t;
    t.samples({7, 8, 9});
    t.in("<loss>", Phase::kLoss);
    const Handle labels = t.value(finite(3).as(DType::kI64).range(-100, labelled ? 4 : -100));
    t.mark(TensorRole::kLabel, "labels", labels);
    const Handle l = t.op("nll_loss", {{"self", t.value(finite(30).range(-3, 0))}, {"target", labels, ArgRole::kIndex}},
                          labelled ? finite(1) : finite(1).nan(1), {{"ignore_index", -100}});
    t.mark(TensorRole::kLoss, "loss", l);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (labelled) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "divide_by_zero | nll_loss | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].samples, (std::vector<std::int64_t>{7, 8, 9}));
    EXPECT_EQ(a.findings[0].evidence.at(0), "target (labels) holds 3 labels, all ignored.");
  }
}

TEST(DivideByZero, of_a_kernel_that_was_given_no_eps_is_found_and_with_eps_it_is_silent) {
  for (const double eps : {0.0, 1e-5}) {
    TraceBuilder t;
    const Handle rstd = t.in("ln").op("native_layer_norm", {{"input", t.value(finite())}},
                                      eps == 0 ? finite().inf(2) : finite(), {{"eps", eps}}, "rstd");
    t.mark(TensorRole::kLoss, "loss", rstd);
    t.end_step();
    const Analysis a = analysis_of(t);
    EXPECT_EQ(table(a), eps == 0 ? "divide_by_zero | native_layer_norm | ln | forward | step 0 | appear | observed\n"
                                 : "clean\n");
    if (eps == 0) {
      EXPECT_EQ(a.findings[0].title, "native_layer_norm in ln divides by 0: its eps is 0");
    }
  }
}

TEST(DivideByZero, covers_the_other_poles) {
  const auto one = [](const std::string& op, const std::string& slot, const Numbers& in, const Numbers& out,
                      const Scalars& scalars = {}) {
    TraceBuilder t;
    const Handle y = t.in("m").op(op, {{"numerator", t.value(finite())}, {slot, t.value(in)}}, out, scalars);
    t.mark(TensorRole::kLoss, "loss", y);
    const Analysis a = analysis_of(t);
    return a.findings.empty() ? std::string("clean") : std::string(finding_class_name(a.findings[0].cls));
  };
  const Numbers zeros = finite().zeros(2).range(0, 1);
  EXPECT_EQ(one("div", "other", zeros, finite().inf(2)), "divide_by_zero");
  EXPECT_EQ(one("div", "other", zeros, finite().nan(2)), "divide_by_zero");
  EXPECT_EQ(one("reciprocal", "self", zeros, finite().inf(2)), "divide_by_zero");
  EXPECT_EQ(one("rsqrt", "self", zeros, finite().inf(2)), "divide_by_zero");
  EXPECT_EQ(one("pow", "self", zeros, finite().inf(2), {{"exponent", -0.5}}), "divide_by_zero");
  EXPECT_EQ(one("pow_backward", "self", zeros, finite().inf(2), {{"exponent", 0.5}}), "divide_by_zero");
  EXPECT_EQ(one("div_backward", "other", zeros, finite().inf(2)), "divide_by_zero");
  EXPECT_EQ(one("mean", "self", finite(0), finite(1).nan(1)), "divide_by_zero");
  EXPECT_EQ(one("div", "divisor", finite(), finite().inf(8), {{"other", 0}}), "divide_by_zero");
}

TEST(Overflow, of_a_product_in_fp16_is_found_and_smaller_numbers_are_silent) {
  for (const double high : {300.0, 100.0}) {
    TraceBuilder t;
    const bool bad = high > 255;
    const Numbers half = finite(64).as(DType::kF16);
    const Handle x = t.value(half.shape({8, 8}).range(0, high));
    const Handle w = t.value(half.shape({8, 8}).range(0, high));
    const Handle b = t.value(finite(8).as(DType::kF16));
    const Handle y = t.in("fc2").op("addmm", {{"bias", b}, {"mat1", x}, {"mat2", w}},
                                    bad ? half.shape({8, 8}).inf(3).range(0, 65472) : half);
    t.mark(TensorRole::kLoss, "loss",
           t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, bad ? finite(1).inf(1) : finite(1)));
    t.end_step();
    const Analysis a = analysis_of(t);
    if (!bad) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "overflow | addmm | fc2 | forward | step 0 | appear | observed\n");
    EXPECT_EQ(a.findings[0].title, "addmm in fc2 overflows fp16: 3 of 64 results exceed 65504");
    EXPECT_EQ(advice_of(a.findings[0]), "fp32-compute bf16 ");
  }
}

TEST(Corruption, is_what_an_op_reads_as_nan_of_contents_that_were_finite) {
  for (const bool bad : {true, false}) {
    TraceBuilder t;
    const Handle x = t.value(finite(4)), w = t.value(finite(4));
    const Handle y = t.in("<loss>", Phase::kLoss).op("mul", {{"self", x}, {"other", w}}, bad ? finite(4).nan(1) : finite(4));
    if (bad) t.element(y, 2, std::nan(""), {{{"self", x}, 1.0}, {{"other", w}, std::nan("")}});
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    const Analysis a = analysis_of(t);
    if (!bad) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "corruption | mul | <loss> | loss | step 0 | appear | observed\n");
    EXPECT_EQ(advice_of(a.findings[0]), "find-stray-write check-memory ");
  }
}

TEST(Overflow, is_not_claimed_when_the_inputs_are_too_small_for_it) {
  TraceBuilder t;  // 8 * 1 * 1 cannot pass 65504: something else made this Inf
  const Numbers half = finite(64).as(DType::kF16).shape({8, 8});
  const Handle y = t.in("fc").op("mm", {{"self", t.value(half)}, {"mat2", t.value(half)}}, half.inf(1));
  t.mark(TensorRole::kLoss, "loss", y);
  EXPECT_EQ(table(analysis_of(t)), "unexplained | mm | fc | forward | step 0 | appear | inferred\n");
}

TEST(Overflow, covers_nan_that_a_sum_makes_inside_and_formats_without_infinity) {
  TraceBuilder t;
  const Numbers wide = finite(4).shape({2, 2}).range(-3e38, 3e38);
  t.mark(TensorRole::kLoss, "loss", t.in("fc").op("mm", {{"self", t.value(wide)}, {"mat2", t.value(wide)}}, wide.nan(1)));
  EXPECT_EQ(table(analysis_of(t)), "overflow | mm | fc | forward | step 0 | appear | observed\n");

  TraceBuilder fp8;
  fp8.mark(
      TensorRole::kLoss, "loss",
      fp8.in("q").op("_to_copy", {{"self", fp8.value(finite().range(0, 500))}}, finite().as(DType::kE4M3FN).nan(1)));
  EXPECT_EQ(table(analysis_of(fp8)), "overflow | _to_copy | q | forward | step 0 | appear | observed\n");
}

TEST(Overflow, of_an_unknown_op_is_only_inferred_and_only_in_a_narrow_format) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    TraceBuilder t;
    const Handle y = t.in("x").op("my_kernel", {{"a", t.value(finite().as(dtype))}}, finite().as(dtype).inf(1));
    t.mark(TensorRole::kLoss, "loss", y);
    EXPECT_EQ(table(analysis_of(t)), dtype == DType::kF16
                                         ? "overflow | my_kernel | x | forward | step 0 | appear | inferred\n"
                                         : "unexplained | my_kernel | x | forward | step 0 | appear | inferred\n");
  }
}

TEST(Invalid, of_a_root_of_a_negative_is_found_and_clamping_is_silent) {
  for (const bool clamped : {false, true}) {
    TraceBuilder t;
    Handle x = t.value(finite().range(-0.25, 1));
    if (clamped) x = t.in("m").op("clamp", {{"self", x}}, finite().zeros(2).range(0, 1), {{"min", 0}, {"max", 10}});
    const Handle y = t.in("m").op("sqrt", {{"self", x}}, clamped ? finite().zeros(2).range(0, 1) : finite().nan(2));
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)),
              clamped ? "clean\n" : "invalid | sqrt | m | forward | step 0 | appear | observed\n");
  }
}

TEST(Invalid, is_told_from_a_pole_by_the_element_that_was_looked_at) {
  for (const double number : {-0.5, 0.0}) {
    TraceBuilder t;
    const Handle x = t.value(finite().zeros(1).range(-0.5, 1));
    const Handle y = t.in("m").op("log", {{"self", x}}, finite().nan(1).neg_inf(1));
    t.element(y, 0, number < 0 ? std::nan("") : -kInf, {{{"self", x}, number}});
    t.mark(TensorRole::kLoss, "loss", y);
    EXPECT_EQ(table(analysis_of(t)), std::string(number < 0 ? "invalid" : "divide_by_zero") +
                                         " | log | m | forward | step 0 | appear | observed\n");
  }
}

TEST(Invalid, covers_fractional_powers_rsqrt_and_a_nan_constant) {
  const auto one = [](const std::string& op, const Numbers& in, const Numbers& out, const Scalars& scalars) {
    TraceBuilder t;
    t.mark(TensorRole::kLoss, "loss", t.in("m").op(op, {{"self", t.value(in)}}, out, scalars));
    return table(analysis_of(t));
  };
  const Numbers negative = finite().range(-2, 1);
  EXPECT_EQ(one("pow", negative, finite().nan(2), {{"exponent", 0.5}}).substr(0, 7), "invalid");
  EXPECT_EQ(one("rsqrt", negative, finite().nan(2), {}).substr(0, 7), "invalid");
  EXPECT_EQ(one("full_like", negative, finite().nan(8), {{"fill_value", std::nan("")}}).substr(0, 7), "invalid");
}

TEST(Invalid, a_masked_entry_that_the_loss_selects_is_told) {
  TraceBuilder t;
  const Handle f =
      t.in("head").op("masked_fill", {{"self", t.value(finite())}, {"mask", t.value(finite()), ArgRole::kMask}},
                      finite().neg_inf(2), {{"value", -kInf}});
  const Handle l = t.in("<loss>", Phase::kLoss).op("nll_loss", {{"self", f}}, finite(1).inf(1));
  t.mark(TensorRole::kLoss, "loss", l);
  EXPECT_EQ(table(analysis_of(t)), "invalid | masked_fill | head | forward | step 0 | appear | inferred\n");
}

TEST(BadInput, names_batch_and_sample_and_a_clean_batch_is_silent) {
  for (const bool clean : {false, true}) {
    TraceBuilder t;
    t.step(4);
    t.samples({40, 41, 42, 43});
    const Handle x = t.value(clean ? finite().shape({4, 64}) : finite().shape({4, 64}).nan(1).first_at(2 * 64 + 7));
    t.mark(TensorRole::kBatch, "images", x);
    const Handle y = t.in("fc1").op("addmm", {{"mat1", x}}, clean ? finite() : finite().nan(2));
    t.mark(TensorRole::kLoss, "loss",
           t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, clean ? finite(1) : finite(1).nan(1)));
    t.end_step();
    const Analysis a = analysis_of(t);
    if (clean) {
      EXPECT_EQ(table(a), "clean\n");
      continue;
    }
    EXPECT_EQ(table(a), "bad_input | <batch> | - | data | step 4 | unknown | observed\n");
    EXPECT_EQ(a.findings[0].samples, std::vector<std::int64_t>{42});
    EXPECT_EQ(a.findings[0].title, "The batch tensor images of step 4 holds 1 NaN of 256: sample 42");
    EXPECT_EQ(a.findings[0].element->coords, (std::vector<std::int64_t>{2, 7}));
    EXPECT_EQ(advice_of(a.findings[0]), "drop-bad-samples ");
    EXPECT_EQ(a.findings[0].chain.nodes.front().op, "<batch>");
  }
}

TEST(BadInput, says_when_only_the_first_bad_row_is_known_and_when_none_is) {
  TraceBuilder t;
  t.samples({5, 6});
  Handle x = t.value(finite().shape({2, 4}).nan(3));
  t.mark(TensorRole::kBatch, "x", x);
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", x}}, finite(1).nan(1)));
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.findings[0].samples, std::vector<std::int64_t>{5});
  EXPECT_NE(a.findings[0].evidence.at(1).find("may be bad too"), std::string::npos);

  TraceBuilder unknown;
  x = unknown.value(finite().nan(3));
  unknown.mark(TensorRole::kBatch, "x", x);
  unknown.mark(TensorRole::kLoss, "loss", unknown.op("sum", {{"self", x}}, finite(1).nan(1)));
  EXPECT_TRUE(analysis_of(unknown).findings[0].samples.empty());

  // without ids a row is a row
  TraceBuilder rows;
  x = rows.value(finite().shape({4, 8}).nan(1).first_at(2 * 8 + 1));
  rows.mark(TensorRole::kBatch, "x", x);
  rows.mark(TensorRole::kLoss, "loss", rows.op("sum", {{"self", x}}, finite(1).nan(1)));
  const Analysis b = analysis_of(rows);
  EXPECT_EQ(b.findings[0].title, "The batch tensor x of step 0 holds 1 NaN of 32, in row 2");
  EXPECT_EQ(b.findings[0].element->row, 2);
  EXPECT_FALSE(b.findings[0].element->row_is_sample);
  EXPECT_FALSE(b.findings[0].element->sample_id);
}

// exp overflows at [2, 1] of four samples by eight features.
ElementEvidence overflow_in_row(bool with_ids, std::vector<std::int64_t> weight,
                                std::vector<std::int64_t> result = {4, 8}, Phase phase = Phase::kForward) {
  TraceBuilder t;
  t.mark(TensorRole::kParameter, "fc1.weight", t.value(finite().shape(weight)));
  if (with_ids) t.samples({40, 41, 42, 43});
  const Handle x = t.value(finite().shape(result).range(0, 100));
  t.mark(TensorRole::kBatch, "x", t.value(finite().shape({4, 8})));
  const Handle y =
      t.in("fc1", phase).op("exp", {{"self", x}}, finite().shape(result).inf(1).first_at(2 * result[1] + 1));
  t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", y}}, finite(1).inf(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kOverflow);
  return a.findings.at(0).element.value_or(ElementEvidence{});
}

TEST(Samples, a_row_of_a_result_is_a_sample_only_where_nothing_else_is_as_long) {
  const ElementEvidence known = overflow_in_row(true, {16, 8});
  EXPECT_EQ(known.coords, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(known.row, 2);
  EXPECT_TRUE(known.row_is_sample);
  EXPECT_EQ(known.sample_id, 42);
  for (const ElementEvidence& unknown :
       {overflow_in_row(false, {16, 8}), overflow_in_row(true, {4, 8}), overflow_in_row(true, {16, 8}, {4, 4}),
        overflow_in_row(true, {16, 8}, {5, 8}), overflow_in_row(true, {16, 8}, {4, 8}, Phase::kOptimizer)}) {
    EXPECT_EQ(unknown.row, 2);
    EXPECT_FALSE(unknown.row_is_sample);
    EXPECT_FALSE(unknown.sample_id);
  }
}

TEST(BadInput, is_recognised_even_if_the_batch_is_named_after_its_first_use) {
  TraceBuilder t;
  const Handle x = t.value(finite().nan(1));
  const Handle y = t.op("mul", {{"self", x}}, finite().nan(1), {{"other", 2}});
  t.mark(TensorRole::kBatch, "x", x);
  t.mark(TensorRole::kLoss, "loss", y);
  EXPECT_EQ(table(analysis_of(t)), "bad_input | <batch> | - | data | step 0 | unknown | observed\n");
}

TEST(BadInput, a_float_mask_in_the_batch_is_not_bad_input) {
  TraceBuilder t;
  const Handle mask = t.value(finite(16).neg_inf(6));
  t.mark(TensorRole::kBatch, "mask", mask);
  const Handle s = t.in("attn").op("add", {{"self", t.value(finite(16))}, {"other", mask}}, finite(16).neg_inf(6));
  const Handle p = t.op("softmax", {{"self", s}}, finite(16).zeros(6));
  t.mark(TensorRole::kLoss, "loss", t.op("sum", {{"self", p}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(BadState, of_a_parameter_state_or_buffer_is_found_before_any_op_and_good_ones_are_silent) {
  for (const TensorRole kind : {TensorRole::kParameter, TensorRole::kState, TensorRole::kBuffer}) {
    for (const bool bad : {true, false}) {
      TraceBuilder t;
      const Handle w = t.value(bad ? finite().shape({2, 4}).nan(2).first_at(5) : finite());
      t.mark(kind, "fc1.weight", w);
      const Handle y = t.in("fc1").op("mul", {{"self", w}}, bad ? finite().nan(2) : finite());
      t.mark(TensorRole::kLoss, "loss", y);
      t.end_step();
      const Analysis a = analysis_of(t);
      EXPECT_EQ(table(a), bad ? "bad_state | <state> | fc1.weight | data | step 0 | unknown | observed\n" : "clean\n");
      if (bad) {
        EXPECT_EQ(advice_of(a.findings[0]), "reload-state ");
      }
    }
  }
}

TEST(BadState, an_infinite_parameter_is_no_mask_where_it_is_used_and_harms_nobody_where_it_is_not) {
  for (const bool used : {true, false}) {
    TraceBuilder t;
    const Handle w = t.value(finite().inf(1));
    t.mark(TensorRole::kParameter, "fc1.weight", w);
    const Handle y = t.in("fc1").op("mul", {{"self", used ? w : t.value(finite())}}, used ? finite().inf(1) : finite());
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    EXPECT_EQ(table(analysis_of(t)),
              used ? "bad_state | <state> | fc1.weight | data | step 0 | unknown | observed\n" : "clean\n");
  }
}

TEST(BadState, what_turned_bad_between_two_looks_is_said_so) {
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.op("sum", {{"self", w}}, finite(1));
  t.end_step();
  w.version = 1;
  const Handle later = t.seen_as(w, finite().nan(1), 0);  // no watched op wrote version 1
  t.mark(TensorRole::kParameter, "fc1.weight", later);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "bad_state | <state> | fc1.weight | data | step 1 | unknown | inferred\n");
  EXPECT_NE(a.findings[0].explanation.find("something unseen"), std::string::npos);
}

}  // namespace
}  // namespace nanhunt
