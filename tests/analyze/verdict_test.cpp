// SPDX-License-Identifier: Apache-2.0
// What surrounds the findings: batches cut anywhere, names that mean nothing, experiments, audits, timeline, bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <optional>
#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

// Two faults, a view, an in-place write, releases, evidence: something of everything.
TraceBuilder everything(const std::string& a, const std::string& b) {
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, a + ".weight", w);
  for (std::int64_t step = 0; step < 4; ++step) {
    t.samples({step * 2, step * 2 + 1});
    const Handle x =
        t.value(step == 2 ? finite().shape({2, 4}).nan(1).first_at(5) : finite().shape({2, 4}).range(0, 100));
    t.mark(TensorRole::kBatch, b, x);
    const Handle v = t.in(a).view("reshape", x, step == 2 ? finite().nan(1) : finite().range(0, 100));
    const Handle e = t.op("exp", {{"self", v}}, step == 2 ? finite().nan(1) : step == 1 ? finite().inf(1) : finite());
    if (step == 1) t.element(e, 4, std::numeric_limits<double>::infinity(), {{{"self", v}, 100.0}});
    const Handle l = t.in("<loss>", Phase::kLoss)
                         .op("sum", {{"self", e}},
                             step == 2   ? finite(1).nan(1)
                             : step == 1 ? finite(1).inf(1)
                                         : finite(1));
    t.mark(TensorRole::kLoss, "loss", l);
    t.in(a + ".weight", Phase::kOptimizer)
        .in_place("add_", w, {{"other", t.value(finite())}}, finite(), {{"alpha", -0.1}});
    t.mark(TensorRole::kParameter, a + ".weight", w);
    t.release(x);
    t.release(e);
    t.end_step(step == 1 || step == 2 ? std::nan("") : 1.0);
  }
  return t;
}

std::string fingerprint(const Analysis& a) {
  std::string out = table(a) + a.verdict.headline + "\n";
  for (const Finding& f : a.findings) {
    out += f.title + f.explanation + std::to_string(f.occurrence_count) + std::to_string(f.last_step);
    for (const std::string& line : f.evidence) out += line;
    for (const std::string& line : f.sinks) out += line;
    for (std::int64_t id : f.samples) out += std::to_string(id) + ",";
    for (const ChainNode& node : f.chain.nodes) out += node.label + ";";
    for (const ChainEdge& edge : f.chain.edges) out += std::to_string(edge.from) + std::to_string(edge.to);
  }
  for (const TimelineStep& step : a.timeline) out += std::to_string(step.bad_ops) + " ";
  for (const EpsAuditRow& row : a.eps_audit) out += row.where + row.verdict;
  return out;
}

TEST(Verdict, does_not_depend_on_how_records_are_cut_into_batches) {
  const TraceBuilder t = everything("fc1", "images");
  const std::string whole = fingerprint(analysis_of(t));
  EXPECT_NE(whole.find("overflow"), std::string::npos);
  EXPECT_NE(whole.find("bad_input"), std::string::npos);
  for (const std::size_t events : {1u, 2u, 3u, 5u, 7u, 11u, 20u})
    EXPECT_EQ(fingerprint(analysis_of(t, events)), whole) << events;
}

TEST(Verdict, does_not_depend_on_names) {
  const auto shape = [](const Analysis& a) {
    std::string out;
    for (const Finding& f : a.findings) {
      out += std::string(finding_class_name(f.cls)) + f.place.op.value_or("") + std::to_string(f.place.seq) +
             std::string(severity_name(f.severity));
    }
    return out + std::string(verdict_status_name(a.verdict.status));
  };
  const std::string expected = shape(analysis_of(everything("fc1", "images")));
  for (const char* name : {"", "exp", "eps", "log_backward", "\x1b[31m", "<batch>", "zzz.exp_avg_sq"}) {
    EXPECT_EQ(shape(analysis_of(everything(name, std::string(name) + "2"))), expected) << name;
  }
}

TEST(Verdict, the_earliest_harm_is_the_headline_whatever_was_born_first) {
  TraceBuilder t;
  // given an Inf hidden since op 0 that does harm in step 1, and another that does harm in step 0
  const Handle hidden = t.in("old").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  const Handle e = t.in("new").op("log", {{"self", t.value(finite().zeros(1).range(0, 1))}}, finite().neg_inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  t.mark(TensorRole::kLoss, "loss", t.in("<loss>", Phase::kLoss).op("sum", {{"self", hidden}}, finite(1).inf(1)));
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a),
            "divide_by_zero | log | new | forward | step 0 | appear | observed\n"
            "overflow | exp | old | forward | step 0 | appear | observed\n");
  EXPECT_EQ(a.findings[1].first_step, 0u);
  EXPECT_EQ(a.findings[1].bad_steps.first, 1u);
  EXPECT_EQ(a.findings[1].bad_steps.anew, 0u);
}

// An overflow in step 3; the loss of step 1 is what is given, and no record shows what became of it.
TraceBuilder overflow_after_a_loss_of(double loss) {
  TraceBuilder t;
  t.end_step();
  t.end_step(loss);
  t.end_step();
  const Handle e = t.in("a").op("exp", {{"self", t.value(finite().range(0, 100))}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step(std::nan(""));
  return t;
}

TEST(Verdict, a_bad_loss_that_nothing_explains_comes_before_a_later_failure) {
  const Analysis a = analysis_of(overflow_after_a_loss_of(std::nan("")));
  EXPECT_EQ(table(a),
            "unexplained | - | - | loss | step 1 | unknown | inferred\n"
            "overflow | exp | a | forward | step 3 | appear | observed\n");
  EXPECT_EQ(a.verdict.origin, "F1");
}

TEST(Verdict, a_bad_loss_in_the_step_of_a_failure_is_not_told_twice) {
  EXPECT_EQ(table(analysis_of(overflow_after_a_loss_of(1))),
            "overflow | exp | a | forward | step 3 | appear | observed\n");
}

ExperimentRecord tried(const std::string& fix, bool finite_run, double factor, bool verified) {
  ExperimentRecord e;
  e.fix = fix;
  e.description = "description of " + fix;
  e.finite = finite_run;
  e.further_steps = finite_run ? 51 : 0;
  e.loss_before = 2.31;
  e.loss_after = 0.42;
  e.update_factor = factor;
  e.verified = verified;
  return e;
}

TEST(Advice, says_what_was_seen_when_it_was_tried_and_puts_cures_first) {
  TraceBuilder t;
  const Handle e =
      t.in("a").op("exp", {{"self", t.value(finite().as(DType::kF16).range(0, 12))}}, finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  t.experiment(tried("clamp-input", true, 54, false));
  t.experiment(tried("fp32-compute", true, 1.02, true));
  t.experiment(tried("own-idea", false, 0, false));
  const std::vector<Advice> advice = analysis_of(t).findings.at(0).advice;
  ASSERT_EQ(advice.size(), 4u);
  EXPECT_EQ(advice[0].id, "fp32-compute");
  EXPECT_EQ(advice[0].verified, true);
  EXPECT_EQ(advice[0].evidence,
            "tried on this run: 51 steps past the failure stayed finite, loss 2.31 -> 0.42, every update within 2 % of "
            "an fp64 optimizer's");
  EXPECT_EQ(advice[1].id, "bf16");
  EXPECT_FALSE(advice[1].verified.has_value());
  EXPECT_EQ(advice[2].id, "clamp-input");
  EXPECT_EQ(advice[2].verified, false);
  EXPECT_NE(advice[2].evidence.find("54x off"), std::string::npos);
  EXPECT_EQ(advice[3].id, "own-idea");
  EXPECT_EQ(advice[3].text, "description of own-idea");
  EXPECT_NE(advice[3].evidence.find("NaN or Inf again"), std::string::npos);
}

TEST(Advice, says_in_words_what_no_factor_tells_of_an_update) {
  TraceBuilder t;
  const Handle e =
      t.in("a").op("exp", {{"self", t.value(finite().as(DType::kF16).range(0, 12))}}, finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  t.experiment(tried("clamp-input", true, std::numeric_limits<double>::infinity(), false));
  const std::vector<Advice> advice = analysis_of(t).findings.at(0).advice;
  const auto clamp = std::find_if(advice.begin(), advice.end(), [](const Advice& a) { return a.id == "clamp-input"; });
  ASSERT_NE(clamp, advice.end());
  EXPECT_EQ(clamp->evidence.find("infx"), std::string::npos) << clamp->evidence;
  EXPECT_NE(clamp->evidence.find("not in the direction of an fp64 optimizer's"), std::string::npos) << clamp->evidence;
}

// exp overflows in module a at step 0 and in module b at step 2: the same advice twice.
TraceBuilder two_overflows() {
  TraceBuilder t;
  const auto overflow = [&](const char* module) {
    const Handle x = t.value(finite().as(DType::kF16).range(0, 12));
    t.mark(TensorRole::kLoss, "loss", t.in(module).op("exp", {{"self", x}}, finite().as(DType::kF16).inf(1)));
    t.end_step();
  };
  overflow("a");
  t.end_step();
  overflow("b");
  return t;
}

std::optional<bool> verified(const Finding& finding, const std::string& id) {
  for (const Advice& advice : finding.advice) {
    if (advice.id == id) return advice.verified;
  }
  ADD_FAILURE() << "no advice " << id << " for " << finding.title;
  return std::nullopt;
}

TEST(Advice, with_a_choice_names_the_half_that_was_tried) {
  TraceBuilder t;
  const Handle e =
      t.in("a").op("exp", {{"self", t.value(finite().as(DType::kF16).range(0, 12))}}, finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kLoss, "loss", e);
  t.end_step();
  t.experiment(tried("fp32-compute", true, 1.02, true));
  t.experiment(tried("clamp-input", true, 54, false));
  const Analysis a = analysis_of(t);
  for (const Advice& advice : a.findings.at(0).advice) {
    // fp32-compute has a choice in it, clamp-input has none, bf16 was not tried
    const std::string tail = advice.id == "fp32-compute" ? " Tried here: description of fp32-compute." : "";
    EXPECT_EQ(advice.text.ends_with(" Tried here: description of fp32-compute."), !tail.empty()) << advice.text;
    EXPECT_EQ(advice.text.find("Tried here") != std::string::npos, !tail.empty()) << advice.text;
  }
}

TEST(Verdict, findings_of_one_line_of_code_say_so) {
  TraceBuilder t;
  const auto at = [&](const char* module, const char* site) {
    const Handle x = t.value(finite().as(DType::kF16).range(0, 12));
    const Handle y = t.in(module).called_from(site).op("exp", {{"self", x}}, finite().as(DType::kF16).inf(1));
    t.mark(TensorRole::kLoss, module, y);
    t.end_step();
  };
  at("a", "train.py:30");
  t.end_step();
  at("b", "train.py:30");
  t.end_step();
  at("c", "train.py:31");
  const std::vector<Finding> findings = analysis_of(t).findings;
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].same_line_as, "");
  EXPECT_EQ(findings[1].same_line_as, "F1");
  EXPECT_EQ(findings[2].same_line_as, "");
}

// A NaN-filled buffer that reaches the loss, beside an overflow at another module.
TraceBuilder bad_buffer(bool with_overflow) {
  TraceBuilder t;
  const Handle pad = t.value(finite(8).nan(8));
  t.mark(TensorRole::kBuffer, "encoder.pad", pad);
  t.mark(TensorRole::kLoss, "loss", t.in("encoder").op("sum", {{"self", pad}}, finite(1).nan(1)));
  if (with_overflow) {
    const Handle x = t.value(finite().as(DType::kF16).range(0, 12));
    t.mark(TensorRole::kLoss, "loss", t.in("head").called_from("model.py:7").op("exp", {{"self", x}}, finite().as(DType::kF16).inf(1)));
  }
  t.end_step();
  return t;
}

TEST(Ignored, what_the_user_names_is_information_with_the_reason_and_the_rest_is_not) {
  for (const char* path : {"encoder.pad", "encoder"}) {
    TraceBuilder t = bad_buffer(false);
    t.note(std::string("ignored by the user: ") + path + ": padding: never selected", 1);
    const Analysis a = analysis_of(t);
    ASSERT_EQ(a.findings.size(), 1u) << "told, not dropped";
    EXPECT_EQ(a.findings[0].severity, Severity::kInfo) << path;
    EXPECT_EQ(a.findings[0].ignored, "padding: never selected");
    EXPECT_TRUE(a.findings[0].title.ends_with("; ignored by the user: padding: never selected"));
    EXPECT_EQ(a.verdict.status, VerdictStatus::kClean);
    EXPECT_TRUE(a.verdict.headline.ends_with("but what the user ignores: padding: never selected")) << a.verdict.headline;
  }
  TraceBuilder both = bad_buffer(true);
  both.note("ignored by the user: encoder.pad: padding", 1);
  const Analysis a = analysis_of(both);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.findings.at(0).place.module, "head");
  both.note("ignored by the user: model.py:7: meant", 1);
  EXPECT_EQ(analysis_of(both).verdict.status, VerdictStatus::kClean);
}

TEST(Ignored, its_twins_are_faults) {
  EXPECT_EQ(analysis_of(bad_buffer(false)).verdict.status, VerdictStatus::kFault);
  // other paths, and notes that name nothing
  for (const char* note : {"ignored by the user: enc: x", "ignored by the user: encoder.padding: x", "ignored by the user: : x",
                           "ignored by the user: encoder.pad", "ignored: encoder.pad: x"}) {
    TraceBuilder t = bad_buffer(false);
    t.note(note, 1);
    const Analysis a = analysis_of(t);
    EXPECT_EQ(a.verdict.status, VerdictStatus::kFault) << note;
    EXPECT_EQ(a.findings.at(0).ignored, "");
  }
}

TEST(Advice, that_was_tried_at_one_step_is_not_credited_to_a_failure_at_another) {
  for (const std::uint32_t step : {0u, 2u}) {
    TraceBuilder t = two_overflows();
    ExperimentRecord cure = tried("fp32-compute", true, 1.02, true);
    cure.step = step;
    t.experiment(cure);
    const std::vector<Finding> findings = analysis_of(t).findings;
    ASSERT_EQ(findings.size(), 2u);
    EXPECT_EQ(verified(findings[step == 0 ? 0 : 1], "fp32-compute"), true) << step;
    EXPECT_EQ(verified(findings[step == 0 ? 1 : 0], "fp32-compute"), std::nullopt) << step;
  }
}

TEST(Advice, that_was_tried_at_a_step_without_a_finding_is_credited_to_none) {
  TraceBuilder t = two_overflows();
  ExperimentRecord cure = tried("fp32-compute", true, 1.02, true);
  cure.step = 1;
  t.experiment(cure);
  const Analysis a = analysis_of(t);
  for (const Finding& finding : a.findings) EXPECT_EQ(verified(finding, "fp32-compute"), std::nullopt);
  EXPECT_EQ(a.experiments.size(), 1u);  // it is told all the same
}

TEST(EpsAudit, tells_what_is_left_of_each_guard_in_the_format_that_stores_it) {
  TraceBuilder t;
  const auto guarded = [&](DType dtype, double eps, const std::string& path, std::int64_t zeros) {
    t.in(path, Phase::kOptimizer);
    Handle d = t.value(finite().as(dtype));
    t.in_place("add_", d, {}, finite().as(dtype).zeros(zeros), {{"other", eps}});
    Handle w = t.value(finite().as(dtype));
    t.in_place("addcdiv_", w, {{"tensor1", t.value(finite().as(dtype))}, {"tensor2", d}}, finite().as(dtype));
  };
  guarded(DType::kF16, 1e-8, "a", 3);
  guarded(DType::kF16, 1e-8, "a", 4);
  guarded(DType::kF16, 1e-5, "b", 0);
  guarded(DType::kF16, 1e-4, "c", 0);
  guarded(DType::kF32, 1e-8, "d", 0);
  t.in("e", Phase::kOptimizer)
      .computing_in(DType::kF32)
      .op("_fused_adam_", {{"self", t.value(finite().as(DType::kF16))}}, finite().as(DType::kF16), {{"eps", 1e-8}});
  // a count that is no guard
  Handle steps = t.value(finite(1));
  t.in_place("add_", steps, {}, finite(1), {{"other", 1}});
  t.op("div", {{"self", t.value(finite())}, {"other", steps}}, finite());
  std::string rows;
  for (const EpsAuditRow& row : analysis_of(t).eps_audit) {
    rows += row.where + " " + std::string(dtype_name(row.dtype)) + " " + row.verdict + " " +
            std::to_string(row.occurrences) + " " + std::to_string(row.zero_denominators) + "\n";
  }
  EXPECT_EQ(rows,
            "optimizer add_ (a) fp16 zero 2 7\n"
            "optimizer add_ (b) fp16 subnormal 1 0\n"
            "optimizer add_ (c) fp16 ok 1 0\n"
            "optimizer add_ (d) fp32 ok 1 0\n"
            "optimizer _fused_adam_ (e) fp32 ok 1 0\n");
}

TEST(Timeline, keeps_bad_steps_and_both_ends_when_it_is_thinned) {
  TraceBuilder t;
  const Handle x = t.value(finite());
  for (std::uint32_t step = 0; step < 10001; ++step) {
    const bool bad = step == 4321 || step == 9000;
    t.op("mul", {{"self", x}}, bad ? finite().inf(1) : finite());
    t.end_step(1);
  }
  const Analysis a = analysis_of(t);
  EXPECT_LE(a.timeline.size(), 4096u);
  EXPECT_EQ(a.timeline_omitted, 10001u - a.timeline.size());
  EXPECT_EQ(a.timeline.front().step, 0u);
  EXPECT_EQ(a.timeline.back().step, 10000u);
  std::vector<std::uint32_t> bad;
  for (const TimelineStep& step : a.timeline) {
    if (step.bad_ops > 0) bad.push_back(step.step);
  }
  EXPECT_EQ(bad, (std::vector<std::uint32_t>{4321, 9000}));
}

TEST(Verdict, findings_beyond_the_limit_are_counted) {
  TraceBuilder t;
  for (int i = 0; i < 5; ++i) {
    const Handle e = t.in("m").op("op" + std::to_string(i), {{"self", t.value(finite())}}, finite().nan(1));
    t.mark(TensorRole::kLoss, "loss" + std::to_string(i), e);
  }
  const Analysis a = analysis_of(t, 0, {.max_findings = 2});
  EXPECT_EQ(a.findings.size(), 2u);
  EXPECT_EQ(a.coverage.unwatched.back(), "3 more findings were left out of this report.");
}

TEST(Verdict, the_scale_of_the_step_is_told) {
  TraceBuilder t;
  const Handle g = t.in("fc", Phase::kBackward)
                       .op("mul_backward", {{"grad_output", t.value(finite().as(DType::kF16).range(0, 6e4))}},
                           finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.end_step(1, 65536);
  EXPECT_EQ(analysis_of(t).findings.at(0).scale, 65536);
}

TEST(Calibration, needs_a_scaler_even_where_the_run_ended_within_the_step) {
  // given nobody scales, and the run died of the bad gradient before its optimizer ran
  const auto killed = [](bool scaled) {
    TraceBuilder t;
    const Handle w = t.value(finite());
    t.mark(TensorRole::kParameter, "fc.weight", w);
    if (scaled) {
      ScalerRecord record;
      record.action = ScalerAction::kScale;
      record.scale = 65536;
      t.scaler(record);
    }
    const Handle g = t.in("fc", Phase::kBackward)
                         .op("mul_backward", {{"grad_output", t.value(finite().as(DType::kF16).range(0, 6e4))}},
                             finite().as(DType::kF16).inf(1));
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    return analysis_of(t);
  };
  EXPECT_EQ(table(killed(false)), "overflow | mul_backward | fc | backward | step 0 | appear | observed\n");
  // and a scaler might have skipped it
  EXPECT_EQ(killed(true).verdict.status, VerdictStatus::kInconclusive);
}

TEST(Calibration, is_seen_where_only_the_steps_tell_that_they_were_skipped) {
  for (const bool skipped : {true, false}) {
    TraceBuilder t;
    for (const double scale : {65536.0, 32768.0, 32768.0}) {
      const bool over = scale == 65536;
      const Numbers g16 = finite().as(DType::kF16).range(0, 6e4);
      const Handle g =
          t.in("fc", Phase::kBackward).op("mul_backward", {{"grad_output", t.value(g16)}}, over ? g16.inf(1) : g16);
      t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
      t.end_step(1, scale, skipped && over);
    }
    EXPECT_EQ(table(analysis_of(t)),
              skipped ? "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | observed\n"
                      : "overflow | mul_backward | fc | backward | step 0 | appear | observed\n");
  }
}

}  // namespace
}  // namespace nanhunt
