// SPDX-License-Identifier: Apache-2.0
// What needs no failure to be wrong: guard constants, autocast, loss scaling, formats. Each beside its repaired twin.
#include <gmock/gmock.h>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Finding* finding(const Analysis& a, const std::string& start) {
  for (const Finding& f : a.findings) {
    if (f.title.starts_with(start)) return &f;
  }
  return nullptr;
}

// sqrt(v) + eps under a division, as an optimizer written out has it.
Analysis guarded(double eps, DType dtype) {
  TraceBuilder t;
  for (const char* module : {"fc1.weight", "fc2.weight"}) {
    const Handle root = t.value(finite().as(dtype).range(1, 2));
    t.in(module, Phase::kOptimizer).called_from("train.py:9");
    const Handle sum = t.op("add", {{"self", root}}, finite().as(dtype).range(1, 2), {{"other", eps}});
    t.op("div", {{"self", t.value(finite().as(dtype))}, {"other", sum}}, finite().as(dtype));
  }
  t.end_step();
  return analysis_of(t);
}

TEST(EpsAudit, names_a_constant_that_rounds_to_0_once_with_the_smallest_safe_one) {
  const Analysis a = guarded(1e-8, DType::kF16);
  ASSERT_EQ(a.findings.size(), 1u);
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.cls, FindingClass::kEpsUnderflow);
  EXPECT_EQ(f.severity, Severity::kFault);
  EXPECT_EQ(f.title, "eps 1e-8 is 0 in fp16: nothing keeps the denominator from being 0");
  EXPECT_EQ(f.call_site, "train.py:9");
  EXPECT_EQ(f.also, std::vector<std::string>{"fc2.weight"});
  EXPECT_EQ(f.advice.at(0).text, "Raise eps to 0.0001 or more, or add it in fp32.");
}

TEST(EpsAudit, warns_of_a_subnormal_constant) {
  const Analysis a = guarded(1e-6, DType::kF16);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kWarning);
  EXPECT_THAT(a.findings[0].title, HasSubstr("eps 1e-6 is subnormal in fp16"));
}

TEST(EpsAudit, is_silent_where_the_format_holds_the_constant) {
  EXPECT_THAT(guarded(1e-4, DType::kF16).findings, IsEmpty());
  EXPECT_THAT(guarded(1e-8, DType::kF32).findings, IsEmpty());
  EXPECT_THAT(guarded(1e-8, DType::kBF16).findings, IsEmpty());
}

// x / x.norm().clamp_min(eps).expand_as(x), as F.normalize has it.
Analysis normalized(double eps, bool rewritten = false) {
  TraceBuilder t;
  t.in("<loss>", Phase::kLoss).called_from("train.py:9");
  const Handle x = t.value(finite(8).as(DType::kF16));
  const Handle norm = t.op("linalg_vector_norm", {{"self", x}}, finite(1).as(DType::kF16).range(1, 2));
  Handle least = t.op("clamp_min", {{"self", norm}}, finite(1).as(DType::kF16).range(1, 2), {{"min", eps}});
  if (rewritten) t.in_place("exp_", least, {}, finite(1).as(DType::kF16).range(1, 2));
  const Handle seen = t.seen_as(least, finite(1).as(DType::kF16).range(1, 2), least.id);
  t.op("div", {{"self", x}, {"other", seen}}, finite(8).as(DType::kF16));
  t.end_step();
  return analysis_of(t);
}

TEST(EpsAudit, sees_a_least_norm_through_a_view_of_it) {
  const Analysis a = normalized(1e-12);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kEpsUnderflow);
  EXPECT_EQ(a.findings[0].severity, Severity::kWarning);
  EXPECT_THAT(normalized(1e-4).findings, IsEmpty());
  EXPECT_THAT(normalized(1e-12, true).findings, IsEmpty());
}

TEST(EpsAudit, sees_a_lower_limit_that_is_a_tensor_of_one_number) {
  const auto similar = [](double eps) {
    TraceBuilder t;
    t.in("<loss>", Phase::kLoss);
    Handle norm = t.value(finite(4).as(DType::kF16).range(1, 2));
    const Handle limit = t.op("scalar_tensor", {}, finite(1).range(eps, eps), {{"s", eps}});
    t.in_place("clamp_min_", norm, {{"min", limit}}, finite(4).as(DType::kF16).range(1, 2));
    t.op("div", {{"self", t.value(finite(4).as(DType::kF16))}, {"other", norm}}, finite(4).as(DType::kF16));
    t.end_step();
    return analysis_of(t);
  };
  EXPECT_EQ(similar(1e-8).findings.size(), 1u);
  EXPECT_THAT(similar(1e-4).findings, IsEmpty());
}

TEST(EpsAudit, says_nothing_more_where_the_constant_has_failed_already) {
  TraceBuilder t;
  t.in("fc1.weight", Phase::kOptimizer);
  const Handle root = t.value(finite().as(DType::kF16).zeros(8));
  const Handle sum = t.op("add", {{"self", root}}, finite().as(DType::kF16).zeros(8), {{"other", 1e-8}});
  const Handle bad = t.op("div", {{"self", t.value(finite().as(DType::kF16))}, {"other", sum}},
                          finite().as(DType::kF16).inf(8));
  t.mark(TensorRole::kParameter, "fc1.weight", bad);
  t.end_step();
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kFault);
}

struct Run {
  DType autocast = DType::kF16;
  double scale = 1;     // of a scaler; 1: none
  double by_hand = 1;   // what the loss is multiplied by
};
TraceBuilder started(const Run& run) {
  TraceBuilder t;
  if (run.autocast != DType::kF32) t.setup(SetupFact::kAutocast, "", "train.py:3", run.autocast);
  if (run.scale != 1) {
    ScalerRecord record;
    record.action = ScalerAction::kCreate;
    record.scale = run.scale;
    record.dynamic = true;
    t.scaler(record);
    record.action = ScalerAction::kScale;
    t.scaler(record);
  }
  const Handle loss = t.in("", Phase::kLoss).op("mean", {{"self", t.value(finite())}}, finite(1));
  if (run.by_hand != 1) t.op("mul", {{"self", loss}}, finite(1), {{"other", run.by_hand}});
  return t;
}
Analysis finished(TraceBuilder& t, double scale = 1) {
  t.end_step(1, scale);
  return analysis_of(t);
}

TEST(SetupAudit, warns_of_autocast_to_fp16_without_a_scaler) {
  TraceBuilder t = started({});
  const Analysis a = finished(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kWarning);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].call_site, "train.py:3");
  EXPECT_EQ(a.findings[0].advice.at(0).id, "loss-scaling");
}

TEST(SetupAudit, is_silent_where_the_loss_is_scaled_by_whatever_means_or_the_format_needs_none) {
  TraceBuilder scaler = started({.scale = 1024});
  EXPECT_THAT(finished(scaler, 1024).findings, IsEmpty());
  TraceBuilder by_hand = started({.by_hand = 128});
  EXPECT_THAT(finished(by_hand).findings, IsEmpty());
  TraceBuilder bf16 = started({.autocast = DType::kBF16});
  EXPECT_THAT(finished(bf16).findings, IsEmpty());
  TraceBuilder none = started({.autocast = DType::kF32});
  EXPECT_THAT(finished(none).findings, IsEmpty());
}

TEST(SetupAudit, a_factor_of_a_loss_of_two_parts_is_no_scale) {
  TraceBuilder t = started({.by_hand = 0.5});
  EXPECT_EQ(finished(t).findings.size(), 1u);
}

TEST(SetupAudit, tells_of_a_scaler_with_bf16) {
  TraceBuilder t = started({.autocast = DType::kBF16, .scale = 65536});
  const Analysis a = finished(t, 65536);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kClean);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kInfo);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "no-scaler-bf16");
}

TEST(SetupAudit, tells_of_backward_under_autocast_with_its_line) {
  TraceBuilder t = started({.autocast = DType::kBF16});
  t.setup(SetupFact::kBackwardInAutocast, "", "train.py:12", DType::kBF16);
  const Analysis a = finished(t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].call_site, "train.py:12");
  EXPECT_EQ(a.findings[0].severity, Severity::kInfo);
}

TEST(SetupAudit, warns_of_a_model_in_fp16_under_autocast_and_is_silent_on_one_without_autocast) {
  TraceBuilder t = started({.scale = 1024});
  t.setup(SetupFact::kNarrowParameters, "fc1.weight", "", DType::kF16, 4);
  const Analysis a = finished(t, 1024);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kWarning);
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("4 parameters of the model are in fp16"));
  TraceBuilder twin = started({.autocast = DType::kF32});
  twin.setup(SetupFact::kNarrowParameters, "fc1.weight", "", DType::kF16, 4);
  EXPECT_THAT(finished(twin).findings, IsEmpty());
}

TEST(SetupAudit, an_optimizer_of_other_parameters_is_a_fault) {
  TraceBuilder t = started({.autocast = DType::kF32});
  t.setup(SetupFact::kForeignParameters, "", "train.py:20", DType::kF32, 6, "AdamW");
  const Analysis a = finished(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.verdict.headline, "AdamW holds other parameters than the model: training stands still");
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "optimizer-after-convert");
}

TEST(PrecisionAudit, finds_what_was_rounded_by_hand_under_autocast) {
  for (const bool by_hand : {true, false}) {
    TraceBuilder t = started({.scale = 1024});
    t.in("head").called_from("model.py:7");
    const Handle x = t.value(finite());
    const Handle half = t.op("_to_copy", {{"self", x}}, finite().as(DType::kF16));
    // What autocast casts it gives to one op; a result of that is no cast of its own.
    const Handle used = by_hand ? half : t.op("mm", {{"self", half}, {"mat2", half}}, finite().as(DType::kF16));
    t.op("_to_copy", {{"self", used}}, finite());
    const Analysis a = finished(t, 1024);
    ASSERT_EQ(a.findings.size(), by_hand ? 1u : 0u);
    if (!by_hand) continue;
    EXPECT_EQ(a.findings[0].call_site, "model.py:7");
    EXPECT_EQ(a.findings[0].advice.at(0).id, "no-manual-half");
  }
}

TEST(PrecisionAudit, finds_losses_whose_parts_have_two_formats) {
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    TraceBuilder t = started({.autocast = DType::kF32});
    t.in("<loss>", Phase::kLoss)
        .op("mse_loss", {{"self", t.value(finite())}, {"target", t.value(finite().as(dtype))}}, finite(1));
    const Analysis a = finished(t);
    EXPECT_EQ(a.findings.size(), dtype == DType::kF64 ? 1u : 0u);
    if (dtype == DType::kF64) {
      EXPECT_EQ(a.findings[0].title, "The loss compares fp32 with targets in fp64");
    }
  }
}

TEST(PrecisionAudit, whole_numbers_are_labels_and_no_format_of_a_loss) {
  TraceBuilder t = started({.autocast = DType::kF32});
  t.in("<loss>", Phase::kLoss)
      .op("nll_loss_forward", {{"self", t.value(finite())}, {"target", t.value(finite().as(DType::kI64))}}, finite(1));
  EXPECT_THAT(finished(t).findings, IsEmpty());
}

TEST(PrecisionAudit, finds_logarithms_of_probabilities_in_16_bits) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    TraceBuilder t = started({.autocast = DType::kF32});
    t.in("<loss>", Phase::kLoss);
    const Handle p = t.op("_softmax", {{"self", t.value(finite().as(dtype))}}, finite().as(dtype).range(0.1, 0.9));
    t.op("log", {{"self", p}}, finite().as(dtype).range(-3, -0.1));
    const Handle q = t.op("_log_softmax", {{"self", t.value(finite().as(dtype))}}, finite().as(dtype).range(-3, -0.1));
    (void)q;
    const Analysis a = finished(t);
    EXPECT_EQ(a.findings.size(), dtype == DType::kF16 ? 2u : 0u);
    if (dtype == DType::kF16) {
      EXPECT_NE(finding(a, "The logarithm of a softmax"), nullptr);
      EXPECT_NE(finding(a, "log_softmax is taken in fp16"), nullptr);
    }
  }
}

TEST(PrecisionAudit, a_softmax_in_16_bits_by_itself_is_fine) {
  TraceBuilder t = started({.autocast = DType::kF32});
  t.in("attention").op("_softmax", {{"self", t.value(finite().as(DType::kF16))}}, finite().as(DType::kF16));
  EXPECT_THAT(finished(t).findings, IsEmpty());
}

}  // namespace
}  // namespace nanhunt
