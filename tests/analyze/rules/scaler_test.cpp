// SPDX-License-Identifier: Apache-2.0
// The verdict on the loss scaler: what it calibrates away is no fault, and no fault is excused as calibration.
#include <gtest/gtest.h>

#include <cmath>

#include "src/analyze/watch/scaler_points.h"
#include "tests/analyze/scaled_run.h"

namespace nanhunt {
namespace {

using namespace testing_support;

TEST(Calibration, of_an_initial_scale_that_is_too_large_is_no_fault) {
  // given 65536 to 8192 overflow in backward, 4096 fits
  ScaledRun run;
  run.steps(30);
  const Analysis a = analysis_of(run.t);
  // then one note, at the op of the first Inf
  EXPECT_EQ(table(a), "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
  EXPECT_EQ(a.verdict.origin, "F1");
  const Finding& f = a.findings[0];
  EXPECT_TRUE(f.benign);
  EXPECT_EQ(f.occurrence_count, 4u);
  EXPECT_EQ(f.scale, 65536);
  EXPECT_EQ(f.last_step, 3u);
  EXPECT_EQ(f.title,
            "The loss scaler calibrated itself: gradients overflowed at scales 65536 to 8192, 4 steps were held back, "
            "4096 fits");
  ASSERT_EQ(f.advice.size(), 1u);
  EXPECT_EQ(f.advice[0].text, "Start the scaler with init_scale = 4096.");
}

TEST(Calibration, recommends_only_a_scale_below_all_at_which_steps_were_skipped) {
  for (const bool long_enough : {true, false}) {
    // given 4096 that held for 21 steps, and a step that was skipped at it then
    ScaledRun run(8192);
    run.steps(22);
    run.step({.fits = 2048});
    run.steps(long_enough ? 25 : 10);
    const Analysis a = analysis_of(run.t);
    ASSERT_EQ(a.findings.size(), 1u) << table(a);
    const std::vector<Advice>& advice = a.findings[0].advice;
    ASSERT_EQ(advice.size(), long_enough ? 1u : 0u);
    if (!long_enough) continue;
    EXPECT_EQ(advice[0].text, "Start the scaler with init_scale = 2048.");
    EXPECT_EQ(advice[0].why,
              "No step of this run was skipped at 2048 or at a lower scale, and 25 steps went through at it.");
  }
}

TEST(Calibration, fills_the_section_of_the_scaler) {
  ScaledRun run;
  run.steps(10);
  const Analysis a = analysis_of(run.t);
  ASSERT_TRUE(a.scaler.has_value());
  const ScalerSection& s = *a.scaler;
  EXPECT_EQ(s.family, "torch.amp");
  EXPECT_TRUE(s.dynamic);
  EXPECT_EQ(s.init_scale, 65536);
  EXPECT_EQ(s.final_scale, 4096);
  EXPECT_EQ(s.steps, 10u);
  EXPECT_EQ(s.skipped, 4u);
  EXPECT_EQ(s.backoffs, 4u);
  EXPECT_EQ(s.growths, 0u);
  EXPECT_EQ(s.longest_streak, 4u);
  EXPECT_FALSE(s.ends_in_streak);
  ASSERT_EQ(s.points.size(), 10u);
  EXPECT_EQ(s.points[1].scale, 32768);
  EXPECT_TRUE(s.points[1].skipped);
  EXPECT_FALSE(s.points[4].skipped);
  ASSERT_EQ(s.events.size(), 8u);
  EXPECT_EQ(s.events[0].what, "skip");
  EXPECT_EQ(s.events[1].what, "backoff");
  EXPECT_EQ(s.events[1].scale, 32768);
  EXPECT_TRUE(a.timeline.at(0).skipped);
}

TEST(Calibration, does_not_depend_on_how_records_are_cut) {
  ScaledRun run;
  run.steps(12);
  const Analysis whole = analysis_of(run.t);
  for (const std::size_t events : {1u, 2u, 3u, 7u, 20u}) {
    const Analysis cut = analysis_of(run.t, events);
    EXPECT_EQ(table(cut), table(whole)) << events;
    EXPECT_EQ(cut.scaler->events.size(), whole.scaler->events.size());
    EXPECT_EQ(cut.findings.at(0).title, whole.findings.at(0).title);
  }
}

TEST(Calibration, without_any_overflow_is_silent) {
  ScaledRun run(1024);
  run.steps(10);
  EXPECT_EQ(table(analysis_of(run.t)), "clean\n");
}

TEST(Calibration, that_the_trace_does_not_see_the_end_of_is_inconclusive) {
  ScaledRun run;
  run.steps(3);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a), "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | inferred\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kInconclusive);
  EXPECT_FALSE(a.findings[0].benign);
  EXPECT_TRUE(a.scaler->ends_in_streak);
  // and so is one that was killed in the middle of a step
  ScaledRun killed;
  killed.step({.ends = false});
  EXPECT_EQ(analysis_of(killed.t).verdict.status, VerdictStatus::kInconclusive);
}

TEST(Calibration, is_no_excuse_for_a_forward_value_beyond_the_format) {
  // given the scaler skips the step as it does an overflow of its own
  ScaledRun run(4096);
  run.steps(5);
  run.step({.forward_inf = true});
  run.steps(5);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a), "overflow | mm | fc | forward | step 5 | appear | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
}

TEST(Calibration, beside_a_fault_is_told_after_it) {
  ScaledRun run;
  run.steps(8);
  run.step({.forward_inf = true});
  run.steps(3);
  EXPECT_EQ(table(analysis_of(run.t)),
            "overflow | mm | fc | forward | step 8 | appear | observed\n"
            "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | observed\n");
}

TEST(Calibration, is_no_excuse_for_a_pole_in_backward_at_a_place_that_overflowed_before) {
  ScaledRun run;
  run.steps(8);
  run.step({.pole = true});
  run.steps(3);
  EXPECT_EQ(table(analysis_of(run.t)),
            "divide_by_zero | div_backward | fc | backward | step 8 | appear | observed\n"
            "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | observed\n");
}

TEST(Calibration, that_poisons_a_buffer_is_a_fault) {
  ScaledRun run;
  run.step({.buffer_inf = true});
  run.steps(8);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kOverflow);
  EXPECT_EQ(a.findings[0].place.op, "mul_backward");
}

TEST(Calibration, needs_a_scaler_that_held_the_step_back) {
  // given the same overflow with nobody to skip the step
  TraceBuilder t;
  Handle w = t.value(finite());
  t.mark(TensorRole::kParameter, "fc.weight", w);
  const Handle g = t.in("fc", Phase::kBackward)
                       .op("mul_backward", {{"grad_output", t.value(finite().as(DType::kF16).range(0, 6e4))}},
                           finite().as(DType::kF16).inf(1));
  t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  t.in("fc.weight", Phase::kOptimizer).in_place("add_", w, {{"other", g}}, finite().inf(1));
  t.mark(TensorRole::kParameter, "fc.weight", w);
  t.end_step(1, 65536);
  EXPECT_EQ(analysis_of(t).verdict.status, VerdictStatus::kFault);
}

TEST(Calibration, again_after_growth_is_one_finding_that_counts) {
  ScaledRun run;
  for (int i = 0; i < 12; ++i) run.steps(3, {.fits = i % 2 == 0 ? 65536.0 / std::ldexp(1, i / 2 + 1) : 65536.0});
  const Analysis a = analysis_of(run.t);
  ASSERT_EQ(a.findings.size(), 1u);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
  EXPECT_EQ(a.findings[0].occurrence_count, a.scaler->skipped);
}

TEST(Calibration, of_hysteresis_and_static_scales_that_stand_still_is_healthy) {
  // given a static scale at which one batch overflows
  ScaledRun run(4096, /*dynamic=*/false);
  run.steps(5);
  run.step({.fits = 2048});
  run.steps(5);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a), "info scaler_calibration | mul_backward | fc | backward | step 5 | appear | inferred\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating);
}

TEST(Calibration, of_a_static_scale_that_skips_for_ever_is_a_fault) {
  ScaledRun run(8192, /*dynamic=*/false);
  run.steps(10);
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a), "overflow | mul_backward | fc | backward | step 0 | appear | observed\n");
}

TEST(Collapse, of_a_scale_that_halves_without_end_is_told_with_the_origin_underneath) {
  ScaledRun run;
  run.steps(25, {.fits = 0});
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a), "scaler_collapse | mul_backward | fc | backward | step 0 | appear | observed\n");
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_NE(text_of(a.findings[0]).find("Underneath: mul_backward in fc"), std::string::npos) << text_of(a.findings[0]);
  EXPECT_EQ(a.findings[0].advice.at(0).id, "fp32-compute");  // of the op that is named, whose cures it has
  // and the twin that settles in time
  ScaledRun healthy;
  healthy.steps(25, {.fits = 2});
  EXPECT_EQ(analysis_of(healthy.t).verdict.status, VerdictStatus::kCalibrating);
}

TEST(Collapse, that_ends_after_all_is_a_warning_about_the_steps_it_took) {
  ScaledRun run(std::ldexp(1, 60));
  run.steps(60, {.fits = 65536});
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(a.findings.at(0).title,
            "The loss scale took 44 steps skipped in a row to settle, from 1.153e18 to 65536");
}

TEST(Collapse, under_a_forward_fault_is_one_finding_at_the_place_and_scale_of_that_fault) {
  ScaledRun run;
  run.steps(25, {.fits = kInf, .forward_inf = true});
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(table(a),
            "scaler_collapse | mm | fc | forward | step 0 | appear | observed\n");
  EXPECT_NE(a.findings[0].title.find("mm in fc overflows fp16"), std::string::npos) << a.findings[0].title;
  EXPECT_NE(a.findings[0].title.find("; the loss scale "), std::string::npos) << a.findings[0].title;
  ASSERT_EQ(a.findings[0].advice.size(), 2u);  // each once
  EXPECT_EQ(a.findings[0].advice[0].id, "fp32-compute");
  EXPECT_EQ(a.findings[0].scale, 65536);
  // and it happened in each of these steps
  EXPECT_EQ(a.findings[0].occurrence_count, 25u);
  EXPECT_EQ(a.findings[0].last_step, 24u);
}

TEST(Collapse, at_the_floor_of_the_scale_is_told) {
  ScaledRun run(16);
  run.floor = 1;
  run.steps(20, {.fits = 0.5});
  const Analysis a = analysis_of(run.t);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(a.findings[0].title, "The loss scale stands at 1 and steps are skipped all the same");
  ScaledRun twin(16);
  twin.floor = 1;
  twin.steps(20, {.fits = 1});
  EXPECT_EQ(analysis_of(twin.t).verdict.status, VerdictStatus::kCalibrating);
}

TEST(Collapse, of_a_scaler_that_each_step_makes_anew_is_told_and_not_of_a_floor) {
  // given gradients that overflow at the first scale, and a scaler that is made in every step, or once
  ScaledRun run(65536);
  run.floor = 65536;  // where each new one starts
  ScaledRun twin(65536);
  for (int step = 0; step < 20; ++step) {
    run.t.scaler(run.record(ScalerAction::kCreate));
    run.step({.fits = 4096});
    twin.step({.fits = 4096});
  }
  const Analysis a = analysis_of(run.t);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(a.findings[0].title, "A new loss scaler is made in every step: its scale is 65536 again each time");
  EXPECT_EQ(a.findings[0].advice.at(0).id, "one-scaler");
  EXPECT_EQ(analysis_of(twin.t).verdict.status, VerdictStatus::kCalibrating);
}

TEST(Collapse, below_one_that_recovers_is_a_warning) {
  ScaledRun run(4);
  run.steps(10, {.fits = 0.25});
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kWarning);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(a.findings.size(), 2u);
}

TEST(Collapse, of_a_growth_interval_that_was_set_below_the_tracker_is_a_warning) {
  for (const bool bug : {true, false}) {
    ScaledRun run(1024);
    run.tracker = bug ? ScaledRun::interval + 5 : 5;
    run.steps(3);
    const Analysis a = analysis_of(run.t);
    EXPECT_EQ(a.verdict.status, bug ? VerdictStatus::kWarning : VerdictStatus::kClean);
    if (bug) {
      EXPECT_EQ(a.findings[0].title, "The loss scale 1024 can never grow again");
    }
  }
}

TEST(Collapse, to_a_scale_whose_inverse_is_infinite_is_told_not_the_unscale_that_shows_it) {
  // given a scale below 2^-126: 1 / scale is Inf, and zero gradients become NaN in a step that is taken
  ScaledRun run(0x1p-127);
  run.forward({});
  ScalerRecord scale = run.record(ScalerAction::kScale);
  run.t.scaler(scale);
  Handle g =
      run.t.in("fc", Phase::kBackward).op("mm_backward", {{"grad_output", run.t.value(finite())}}, finite().zeros(8));
  run.t.scaler(run.record(ScalerAction::kUnscale));
  run.t.in("", Phase::kUnscale)
      .in_place("_amp_foreach_non_finite_check_and_unscale_", g, {}, finite().nan(8), {{"inv_scale", kInf}});
  run.t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  run.t.scaler(run.record(ScalerAction::kStep));
  run.t.scaler(run.record(ScalerAction::kUpdate));
  run.t.end_step(1, 0x1p-127);
  const Analysis a = analysis_of(run.t);
  ASSERT_EQ(a.findings.size(), 1u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCollapse);
  EXPECT_EQ(a.findings[0].sinks, std::vector<std::string>{"gradient of fc.weight"});
  ASSERT_EQ(a.findings[0].advice.size(), 1u);
  EXPECT_EQ(a.findings[0].advice[0].id, "cure-origin");
}

TEST(Calibration, is_not_what_a_static_scaler_does_that_steps_in_spite_of_what_it_found) {
  ScaledRun run(4096, /*dynamic=*/false);
  run.t.scaler(run.record(ScalerAction::kScale));
  const Handle g = run.t.in("fc", Phase::kBackward)
                       .op("mul_backward", {{"grad_output", run.t.value(finite().as(DType::kF16).range(0, 6e4))}},
                           finite().as(DType::kF16).inf(1));
  run.t.mark(TensorRole::kBoundaryGradient, "fc.weight", g);
  for (const ScalerAction action : {ScalerAction::kUnscale, ScalerAction::kStep, ScalerAction::kUpdate}) {
    ScalerRecord record = run.record(action);
    record.found_inf = true;
    run.t.scaler(record);
  }
  run.t.end_step(1, 4096);
  run.steps(3);
  EXPECT_EQ(table(analysis_of(run.t)), "overflow | mul_backward | fc | backward | step 0 | appear | observed\n");
}

TEST(ScalerPoints, keep_extremes_and_skips_of_a_long_run) {
  analyze::ScalerPoints points;
  for (std::uint32_t step = 0; step < 200000; ++step)
    points.add({step, step == 77777 ? 2.0 : step == 150001 ? 1e6 : 1024.0, step == 123456});
  const auto kept = points.points();
  EXPECT_LE(kept.size(), analyze::ScalerPoints::kMaxPoints);
  const auto has = [&](std::uint32_t step) {
    return std::any_of(kept.begin(), kept.end(), [&](const auto& point) { return point.step == step; });
  };
  EXPECT_TRUE(has(0) && has(77777) && has(123456) && has(150001) && has(199999));
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.step < b.step; }));
}

TEST(Calibration, does_not_explain_a_later_bad_loss) {
  ScaledRun run;
  run.steps(8);
  ASSERT_EQ(analysis_of(run.t).verdict.status, VerdictStatus::kCalibrating);
  run.t.end_step(std::nan(""));
  const Analysis a = analysis_of(run.t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.findings.at(0).cls, FindingClass::kUnexplained);
  EXPECT_EQ(a.findings.at(0).place.step, 8u);
}

TEST(Collapse, is_not_made_of_skips_between_which_steps_were_retired) {
  // given a scale that overflows each time it has grown to 65536, and a trace that kept only those steps
  const auto skips = [](bool retired) {
    ScaledRun run(65536);
    run.floor = 65536;  // the growth that nobody sees
    for (int i = 0; i < 45; ++i) {
      run.step();
      if (retired) run.t.step(run.t.now() + 2000);
    }
    return analysis_of(run.t);
  };
  EXPECT_EQ(table(skips(true)),
            "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | inferred\n");
  EXPECT_EQ(table(skips(false)), "scaler_collapse | mul_backward | fc | backward | step 0 | appear | observed\n");
}

TEST(Calibration, is_no_excuse_for_nan_that_backward_makes_of_small_finite_numbers) {
  // given 0/0 inside a derivative, which no scale can cure, in one batch
  ScaledRun run(4096);
  run.steps(5);
  run.step({.indeterminate = true});
  run.steps(5);
  EXPECT_EQ(table(analysis_of(run.t)), "unexplained | std_backward | fc | backward | step 5 | appear | inferred\n");
}

TEST(Calibration, that_was_over_long_ago_does_not_stand_for_a_later_streak_at_the_same_op) {
  // given more overflows of one op than are kept apart, long before the scale collapses
  ScaledRun run(std::ldexp(1, 20));
  run.steps(100);
  run.steps(60, {.fits = 0});
  EXPECT_EQ(table(analysis_of(run.t)),
            "scaler_collapse | mul_backward | fc | backward | step 100 | appear | observed\n"
            "info scaler_calibration | mul_backward | fc | backward | step 0 | appear | observed\n");
  // and then all of the early ones are still counted
  EXPECT_EQ(analysis_of(run.t).findings.at(1).occurrence_count, 8u);
}

TEST(Collapse, of_a_scale_that_falls_without_end_is_not_hidden_by_clean_steps_between) {
  // given every other batch overflows whatever the scale
  const auto every_other = [](double fits) {
    ScaledRun run;
    for (int i = 0; i < 30; ++i) {
      run.step({.fits = fits});
      run.step({.fits = kInf});
    }
    return analysis_of(run.t);
  };
  const Analysis a = every_other(0);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kFault);
  EXPECT_EQ(a.verdict.headline,
            "The loss scale falls without end, down to 0.0009766: steps are skipped again and again");
  // and a scale that holds is none
  EXPECT_EQ(every_other(64).verdict.status, VerdictStatus::kCalibrating);
}

TEST(ScalerCollapse, is_not_laid_on_a_change_of_contents_that_did_no_harm) {
  // given steps that are skipped for ever, whose ops nobody saw, and a weight that changed a little meanwhile
  ScaledRun run;
  double scale = 65536;
  Handle w = run.t.value(finite().range(-1, 1));
  run.t.mark(TensorRole::kParameter, "fc1.weight", w);
  for (int i = 0; i < 60; ++i, scale /= 2) {
    ScalerRecord r = run.record(ScalerAction::kScale);
    r.scale = scale;
    run.t.scaler(r);
    if (i == 3) w = run.t.changed(w, finite().range(-1, 1.5));
    r.found_inf = true;
    r.action = ScalerAction::kUnscale;
    run.t.scaler(r);
    r.action = ScalerAction::kSkip;
    run.t.scaler(r);
    r.action = ScalerAction::kUpdate;
    r.scale = scale / 2;
    run.t.scaler(r);
    run.t.end_step(1, scale, /*skipped=*/true);
  }
  const Analysis a = analysis_of(run.t);
  ASSERT_EQ(a.findings.size(), 2u) << table(a);
  EXPECT_EQ(a.findings[0].cls, FindingClass::kScalerCollapse);
  EXPECT_FALSE(a.findings[0].place.op) << table(a);
  EXPECT_EQ(a.findings[0].title.find("changed with nothing writing them"), std::string::npos) << a.findings[0].title;
  EXPECT_EQ(a.findings[1].cls, FindingClass::kCorruption);
  EXPECT_EQ(a.findings[1].severity, Severity::kWarning);
}

}  // namespace
}  // namespace nanhunt
