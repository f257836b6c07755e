// SPDX-License-Identifier: Apache-2.0
// Calls around the loss scaler in a wrong order.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/analyze/scaled_run.h"

namespace nanhunt {
namespace {

using namespace testing_support;

// No finding. Traces of calls alone are not clean: no operation of theirs was watched.
constexpr const char* kSilent = "inconclusive\n";

TEST(Misuse, of_gradients_kept_after_a_skip_is_named_at_the_op_that_adds_to_them) {
  ScaledRun run;
  run.step();
  run.steps(8, {.fits = 4096, .kept = true});
  const Analysis a = analysis_of(run.t);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kApiMisuse) << table(a);
  EXPECT_EQ(a.findings[0].place.op, "add_");
  EXPECT_EQ(a.findings[0].place.step, 1u);
  // and gradients that are added to while all is well, or cleared after a skip, are none of its business
  ScaledRun twin(4096);
  twin.step();
  twin.steps(8, {.kept = true});
  EXPECT_EQ(table(analysis_of(twin.t)), "clean\n");
}

TEST(Misuse, of_clipping_before_unscale_is_found_and_after_it_is_not) {
  struct Clip {
    bool bug, before;
    double max_norm;
  };
  for (const auto& [bug, before, max_norm] : {Clip{true, true, 1}, {false, false, 1}, {false, true, kInf}}) {
    ScaledRun run(4096);
    for (int step = 0; step < 3; ++step) {
      run.t.scaler(run.record(ScalerAction::kScale));
      ScalerRecord clip = run.record(ScalerAction::kClip);
      clip.total_norm = before ? 8192 : 2;
      clip.max_norm = max_norm;  // without a limit it only measures
      if (before) run.t.scaler(clip);
      run.t.scaler(run.record(ScalerAction::kUnscale));
      if (!before) run.t.scaler(clip);
      run.t.scaler(run.record(ScalerAction::kStep));
      run.t.scaler(run.record(ScalerAction::kUpdate));
      run.t.end_step(1, 4096);
    }
    EXPECT_EQ(table(analysis_of(run.t)),
              bug ? "api_misuse | clip_grad_norm_ | - | clip | step 0 | unknown | observed\n" : kSilent);
  }
}

TEST(Misuse, of_clipping_without_a_scaler_does_not_exist) {
  TraceBuilder t;
  ScalerRecord clip;
  clip.action = ScalerAction::kClip;
  clip.total_norm = 10;
  clip.max_norm = 1;
  t.scaler(clip);
  t.end_step();
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), kSilent);
  EXPECT_FALSE(a.scaler.has_value());
}

TEST(Misuse, of_a_second_unscale_or_a_second_step_without_update_is_found) {
  for (const ScalerAction twice : {ScalerAction::kUnscale, ScalerAction::kStep}) {
    ScaledRun run(4096);
    for (const ScalerAction action : {ScalerAction::kScale, ScalerAction::kUnscale, ScalerAction::kStep}) {
      run.t.scaler(run.record(action));
      if (action == twice) run.t.scaler(run.record(action));
    }
    run.t.scaler(run.record(ScalerAction::kUpdate));
    run.t.end_step(1, 4096);
    const Analysis a = analysis_of(run.t);
    ASSERT_EQ(a.findings.size(), 1u);
    EXPECT_EQ(a.findings[0].place.op, twice == ScalerAction::kUnscale ? "unscale_" : "step");
  }
}

// Steps in which an optimizer runs after the loss was scaled. `unscaled_by`: what the program multiplies gradients by.
Analysis stepped_past(double unscaled_by, bool asked = false) {
  ScaledRun run(4096);
  for (int step = 0; step < 3; ++step) {
    run.t.scaler(run.record(ScalerAction::kScale));
    Handle g = run.t.in("fc.weight", Phase::kBackward).op("mm_backward", {}, finite());
    Handle weight = run.t.value(finite());
    if (unscaled_by != 1) run.t.in("fc.weight", Phase::kUnscale).in_place("mul_", g, {}, finite(), {{"other", unscaled_by}});
    run.t.in("fc.weight", Phase::kOptimizer).in_place("add_", weight, {{"other", g}}, finite());
    if (asked) run.t.scaler(run.record(ScalerAction::kStep));
    run.t.end_step(1, 4096);
  }
  return analysis_of(run.t);
}

TEST(Misuse, of_a_scaler_that_only_scales_is_found_and_a_program_that_unscales_itself_is_not) {
  const Analysis a = stepped_past(1);
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kApiMisuse);
  EXPECT_EQ(a.findings[0].severity, Severity::kWarning);
  EXPECT_EQ(a.findings[0].occurrence_count, 3u);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "step-by-scaler");
  EXPECT_EQ(table(stepped_past(1.0 / 4096)), "clean\n");
  const Analysis asked = stepped_past(1, true);
  for (const Finding& f : asked.findings) EXPECT_EQ(f.title.find("never unscaled"), std::string::npos) << f.title;
}

// A scaler that only scales, and an overflow: in backward of the first step, or in forward of the second.
struct OverflowPastScaler {
  Phase phase = Phase::kBackward;
  const char* update = "add_";  // of the optimizer
  bool asked = false;           // it steps by the scaler
};

Analysis overflow_past_the_scaler(const OverflowPastScaler& p) {
  ScaledRun run(4096);
  TraceBuilder& t = run.t;
  Handle weight = t.value(finite());
  for (int step = 0; step < 2; ++step) {
    const auto half = [&](Phase phase, int at) {
      const Numbers n = finite(64).as(DType::kF16).range(-6e4, 6e4);
      return p.phase == phase && at == step ? n.inf(3) : n;
    };
    const Handle x = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-300, 300));
    const Handle h = t.in("fc").op("mm", {{"self", x}, {"mat2", x}}, half(Phase::kForward, 1));
    t.scaler(run.record(ScalerAction::kScale));
    const Handle d = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-6e4, 6e4));
    const Handle g = t.in("fc", Phase::kBackward).op("sum", {{"self", d}}, half(Phase::kBackward, 0));
    t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
    const bool bad = p.phase == Phase::kBackward || step == 1;
    t.in("fc.weight", Phase::kOptimizer).called_from("train.py:9");
    t.in_place(p.update, weight, {{"other", p.phase == Phase::kForward ? h : g}}, bad ? finite().inf(3) : finite());
    t.mark(TensorRole::kParameter, "fc.weight", weight);
    if (p.asked) t.scaler(run.record(ScalerAction::kStep));
    t.end_step(1, 4096);
  }
  return analysis_of(t);
}

TEST(Misuse, of_a_scaler_that_only_scales_leads_the_overflow_that_follows_of_it) {
  for (const Phase phase : {Phase::kBackward, Phase::kForward}) {
    const Analysis a = overflow_past_the_scaler({phase});
    ASSERT_FALSE(a.findings.empty());
    const Finding& f = a.findings[0];
    EXPECT_EQ(f.cls, FindingClass::kApiMisuse) << table(a);
    EXPECT_EQ(f.severity, Severity::kFault);
    EXPECT_EQ(f.call_site, "train.py:9");
    EXPECT_EQ(f.confidence, phase == Phase::kForward ? Confidence::kInferred : Confidence::kObserved);
    EXPECT_EQ(f.advice.at(0).id, "step-by-scaler");
    EXPECT_NE(std::find(f.sinks.begin(), f.sinks.end(), "parameter fc.weight"), f.sinks.end());
    EXPECT_NE(text_of(f).find("overflows fp16"), std::string::npos) << text_of(f);
    for (const Finding& other : a.findings) EXPECT_NE(other.cls, FindingClass::kOverflow) << table(a);
  }
}

// Two optimizers, one of which the scaler steps. The other one steps by itself in step 0 and step 1, in whose backward
// or forward something overflows.
struct PastScaler {
  Phase phase = Phase::kBackward;
  const char* update = "add_";  // of the optimizer that steps by itself
  bool own_loss = false;        // it trains a loss that no scaler multiplied
  bool cleared = false;         // scaled gradients that were zeroed before
  double divided_by = 1;        // by the program, in a hook
  bool scale_given = false;     // to a fused optimizer
};

Analysis one_of_two_past_the_scaler(const PastScaler& p) {
  ScaledRun run(4096);
  TraceBuilder& t = run.t;
  Handle body = t.value(finite()), head = t.value(finite());
  for (int step = 0; step < 2; ++step) {
    const auto half = [&](Phase phase) {
      const Numbers n = finite(64).as(DType::kF16).range(-6e4, 6e4);
      return p.phase == phase && step == 1 ? n.inf(3) : n;
    };
    const Handle x = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-300, 300));
    const Handle h = t.in("fc").op("mm", {{"self", x}, {"mat2", x}}, half(Phase::kForward));
    const Handle loss = t.in("<loss>", Phase::kLoss).op("mean", {{"self", x}}, finite(1));
    t.scaler(run.record(ScalerAction::kScale));
    const Handle scaled = t.in("<loss>", Phase::kScale).op("mul", {{"self", loss}}, finite(1), {{"other", 4096}});
    t.in("fc", Phase::kBackward);
    Handle of_body = t.op("mm_backward", {{"grad_output", scaled}}, finite());
    const Handle d = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-6e4, 6e4));
    const Handle from = p.own_loss ? t.value(finite(1)) : scaled;
    Handle of_head = t.op("mm", {{"self", d}, {"mat2", d}, {"grad_output", from}}, half(Phase::kBackward));
    if (p.divided_by != 1) of_head = t.op("div", {{"self", of_head}}, half(Phase::kBackward), {{"other", p.divided_by}});
    if (p.cleared) {
      t.in("", Phase::kData).in_place("zero_", of_head, {}, finite().range(0, 0).zeros(8));
      t.in("fc", Phase::kBackward).in_place("add_", of_head, {{"other", x}}, half(Phase::kBackward));
    }
    t.scaler(run.record(ScalerAction::kUnscale));
    t.in("", Phase::kUnscale)
        .in_place("_amp_foreach_non_finite_check_and_unscale_", of_body, {}, finite(), {{"inv_scale", 1.0 / 4096}});
    t.in("body.weight", Phase::kOptimizer).called_from("train.py:8").in_place("add_", body, {{"other", of_body}}, finite());
    t.scaler(run.record(ScalerAction::kStep));
    t.in("head.weight", Phase::kOptimizer).called_from("train.py:9");
    std::vector<In> reads = {{"other", p.phase == Phase::kForward && step == 1 ? h : of_head}};
    if (p.scale_given) reads.push_back({"grad_scale", t.value(finite(1))});
    t.in_place(p.update, head, reads, step == 1 ? finite().inf(3) : finite());
    t.mark(TensorRole::kParameter, "head.weight", head);
    t.scaler(run.record(ScalerAction::kUpdate));
    t.end_step(1, 4096);
  }
  return analysis_of(t);
}

TEST(Misuse, of_one_optimizer_that_steps_past_the_scaler_leads_the_overflow_that_follows_of_it) {
  for (const Phase phase : {Phase::kBackward, Phase::kForward}) {
    const Analysis a = one_of_two_past_the_scaler({phase});
    ASSERT_FALSE(a.findings.empty());
    const Finding& f = a.findings[0];
    EXPECT_EQ(f.cls, FindingClass::kApiMisuse) << table(a);
    EXPECT_EQ(f.severity, Severity::kFault);
    EXPECT_EQ(f.call_site, "train.py:9");
    EXPECT_EQ(f.advice.at(0).id, "step-by-scaler");
    EXPECT_NE(text_of(f).find("It updates head.weight."), std::string::npos) << text_of(f);
    for (const Finding& other : a.findings) EXPECT_NE(other.cls, FindingClass::kOverflow) << table(a);
  }
}

TEST(Misuse, of_one_optimizer_is_not_seen_where_its_gradients_carry_no_scale) {
  for (const PastScaler& p : {PastScaler{.own_loss = true}, PastScaler{.cleared = true}, PastScaler{.divided_by = 4096},
                              PastScaler{.update = "_fused_adam_", .scale_given = true}}) {
    for (const Finding& f : one_of_two_past_the_scaler(p).findings) EXPECT_NE(f.cls, FindingClass::kApiMisuse) << f.title;
  }
}

TEST(Misuse, of_one_optimizer_leads_no_forward_where_its_updates_are_of_another_size) {
  // given one that divides by the gradients' size
  const Analysis a = one_of_two_past_the_scaler({Phase::kForward, "addcdiv_"});
  ASSERT_EQ(a.findings.size(), 2u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(a.findings[1].severity, Severity::kWarning);
}

// A scaler skips the step 0 of infinite gradients. Then an optimizer runs by itself, with those gradients or with new
// ones.
Analysis stepped_after_skip(bool clears) {
  ScaledRun run(4096);
  TraceBuilder& t = run.t;
  Handle weight = t.value(finite());
  run.t.scaler(run.record(ScalerAction::kScale));
  const Handle x = t.value(finite(64).as(DType::kF16).shape({8, 8}).range(-300, 300));
  Handle g = t.in("fc", Phase::kBackward)
                 .op("mm", {{"self", x}, {"mat2", x}}, finite(64).as(DType::kF16).range(-6e4, 6e4).inf(3));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  ScalerRecord skip = run.record(ScalerAction::kSkip);
  skip.found_inf = true;
  t.scaler(skip);
  ScalerRecord update = run.record(ScalerAction::kUpdate);
  update.found_inf = true;
  update.scale = 2048;
  t.scaler(update);
  t.end_step(1, 4096, true);
  if (clears)
    g = t.in("fc", Phase::kBackward).op("mm", {{"self", x}, {"mat2", x}}, finite(64).as(DType::kF16).range(-6e4, 6e4));
  t.in("fc.weight", Phase::kOptimizer).called_from("train.py:12");
  t.in_place("add_", weight, {{"other", g}}, clears ? finite() : finite().inf(3));
  t.mark(TensorRole::kParameter, "fc.weight", weight);
  t.end_step(1, 2048);
  return analysis_of(t);
}

TEST(Misuse, of_an_optimizer_that_steps_with_gradients_that_the_scaler_had_skipped_leads_their_overflow) {
  const Analysis a = stepped_after_skip(false);
  ASSERT_FALSE(a.findings.empty());
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.cls, FindingClass::kApiMisuse) << table(a);
  EXPECT_EQ(f.severity, Severity::kFault);
  EXPECT_EQ(f.place.step, 1u);
  EXPECT_EQ(f.call_site, "train.py:12");
  EXPECT_EQ(f.advice.at(0).id, "no-step-beside-scaler");
  EXPECT_NE(std::find(f.sinks.begin(), f.sinks.end(), "parameter fc.weight"), f.sinks.end());
  EXPECT_NE(text_of(f).find("overflows fp16"), std::string::npos) << text_of(f);
  for (const Finding& other : a.findings) EXPECT_NE(other.cls, FindingClass::kOverflow) << table(a);
  for (const Finding& other : stepped_after_skip(true).findings) EXPECT_NE(other.cls, FindingClass::kApiMisuse);
}

TEST(Misuse, of_a_scaler_that_only_scales_leads_no_overflow_of_another_cause) {
  // given an optimizer that divides by the gradients' size, or one that steps by the scaler
  for (const OverflowPastScaler& p :
       {OverflowPastScaler{Phase::kForward, "addcdiv_"}, OverflowPastScaler{Phase::kBackward, "add_", true}}) {
    const Analysis a = overflow_past_the_scaler(p);
    ASSERT_FALSE(a.findings.empty());
    EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow) << table(a);
  }
}

TEST(Misuse, is_not_made_of_two_scalers_that_each_number_their_optimizers_from_0) {
  // given two scalers, each with one optimizer
  ScaledRun run(4096);
  for (int scaler = 0; scaler < 2; ++scaler) run.t.scaler(run.record(ScalerAction::kCreate));
  for (int step = 0; step < 3; ++step) {
    for (const ScalerAction action : {ScalerAction::kScale, ScalerAction::kUnscale, ScalerAction::kStep}) {
      for (int scaler = 0; scaler < 2; ++scaler) run.t.scaler(run.record(action));
    }
    for (int scaler = 0; scaler < 2; ++scaler) run.t.scaler(run.record(ScalerAction::kUpdate));
    run.t.end_step(1, 4096);
  }
  EXPECT_EQ(table(analysis_of(run.t)), kSilent);
}

TEST(Misuse, is_not_seen_in_calls_between_which_others_are_missing) {
  // given a trace that lost what the scaler did from step 0 to step 9
  ScaledRun run(4096);
  run.t.scaler(run.record(ScalerAction::kUnscale));
  run.t.end_step(1, 4096);
  run.t.step(9);
  run.t.scaler(run.record(ScalerAction::kScale));
  run.t.scaler(run.record(ScalerAction::kUnscale));
  run.t.end_step(1, 4096);
  EXPECT_EQ(table(analysis_of(run.t)), kSilent);
}

TEST(Misuse, of_a_refused_call_names_the_call) {
  const std::pair<const char*, const char*> cases[] = {
      {"step() has already been called since the last update().", "step"},
      {"unscale_() is being called after step().", "unscale_"},
      {"Attempted update but _scale is None.  This may indicate ...", "update"},
      {"No inf checks were recorded prior to update.", "update"},
      {"No inf checks were recorded for this optimizer.", "step"},
      {"Attempting to unscale FP16 gradients.", "unscale_"},
      {"The growth factor must be > 1.0.", "GradScaler"},
  };
  for (const auto& [text, call] : cases) {
    ScaledRun run(1024);
    run.t.scaler(run.record(ScalerAction::kRefused), text);
    EXPECT_EQ(analysis_of(run.t).findings.at(0).place.op, call) << text;
  }
}

TEST(Misuse, that_was_refused_is_a_fault_where_the_run_ended_and_a_warning_where_it_went_on) {
  for (const bool goes_on : {true, false}) {
    ScaledRun run(1024);
    run.steps(2);
    run.t.scaler(run.record(ScalerAction::kRefused),
                 "unscale_() has already been called on this optimizer since the last update().");
    if (goes_on) {
      run.t.end_step(1, 1024);
      run.steps(2);
    }
    EXPECT_EQ(table(analysis_of(run.t)),
              std::string(goes_on ? "warning " : "") +
                  "api_misuse | unscale_ | - | unscale | step 2 | unknown | observed\n");
  }
}

TEST(Misuse, that_was_refused_is_a_warning_where_the_program_caught_it_and_no_step_of_the_optimizer_followed) {
  // given a program that leaves each step at the call that was refused, after which it calls update
  ScaledRun run(8);
  for (int i = 0; i < 6; ++i) {
    for (const ScalerAction action : {ScalerAction::kScale, ScalerAction::kUnscale}) run.t.scaler(run.record(action));
    run.t.scaler(run.record(ScalerAction::kRefused), "unscale_() has already been called on this optimizer");
    run.t.scaler(run.record(ScalerAction::kUpdate));
  }
  run.t.end_step(1, 8);
  const Analysis a = analysis_of(run.t);
  ASSERT_FALSE(a.findings.empty());
  const Finding& f = a.findings[0];
  EXPECT_EQ(f.severity, Severity::kWarning) << table(a);
  EXPECT_EQ(f.occurrence_count, 1u);
  EXPECT_NE(text_of(f).find("the run went on"), std::string::npos) << text_of(f);
  EXPECT_NE(text_of(f).find("Seen 6 times, all in step 0."), std::string::npos) << text_of(f);
}

}  // namespace
}  // namespace nanhunt
