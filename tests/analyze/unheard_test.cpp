// SPDX-License-Identifier: Apache-2.0
// Traces with one HealthRecord a step, and the ops of only some of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint32_t bit(TensorRole kind) { return 1u << static_cast<unsigned>(kind); }
constexpr std::uint32_t kLossBad = bit(TensorRole::kLoss) | bit(TensorRole::kBoundaryGradient);
constexpr std::uint32_t kGradientBad = bit(TensorRole::kBoundaryGradient);
const double kNaN = std::nan("");

void clean_steps(TraceBuilder& t, int count, double scale = 1) {
  for (int i = 0; i < count; ++i) {
    t.health();
    t.end_step(1, scale);
  }
}
// log of a zero makes the loss infinite.
void record_loss(TraceBuilder& t, bool bad = true) {
  const Handle p = t.in("fc1").op("softmax", {{"self", t.value(finite())}}, finite().zeros(bad ? 1 : 0).range(0, 1));
  const Handle l = t.in("<loss>", Phase::kLoss).op("log", {{"self", p}}, bad ? finite().neg_inf(1) : finite());
  t.mark(TensorRole::kLoss, "loss", l);
}
TEST(StepHealth, a_step_that_was_heard_is_judged_as_at_level_ops) {
  TraceBuilder t;
  clean_steps(t, 3);
  record_loss(t);
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | log | <loss> | loss | step 3 | appear | observed\n");
  EXPECT_THAT(a.coverage.unwatched, Contains(HasSubstr("updates that rounding lost")));
  EXPECT_EQ(a.coverage.steps, 4u);
}

TEST(StepHealth, clean_steps_alone_are_clean) {
  TraceBuilder t;
  clean_steps(t, 5);
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(StepHealth, later_bad_steps_that_were_not_heard_count_for_the_origin) {
  TraceBuilder t;
  clean_steps(t, 1);
  record_loss(t);
  for (int i = 0; i < 5; ++i) {
    t.health(kLossBad | bit(TensorRole::kParameter), "loss");
    t.end_step(kNaN);
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | log | <loss> | loss | step 1 | appear | observed\n");
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);  // seen to happen
  EXPECT_EQ(a.findings[0].last_step, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 5u);
  EXPECT_EQ(a.findings[0].bad_steps.anew, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 4u);
  EXPECT_EQ(a.findings[0].bad_steps.last, 5u);
}

// Weights that one step may leave bad, a step whose ops were not kept, and a batch that holds NaN in the step after it.
Analysis batch_after_unheard(bool broken) {
  TraceBuilder t;
  clean_steps(t, 1);
  if (broken) record_loss(t);
  Handle w = t.value(finite());
  t.in("fc1", Phase::kOptimizer).in_place("add_", w, {{"other", t.value(finite())}}, finite());
  Handle bad = t.op("sqrt", {{"self", t.value(finite().range(-1, 1))}}, broken ? finite().nan(8) : finite());
  t.in_place("copy_", w, {{"src", bad}}, broken ? finite().nan(8) : finite());
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  for (int i = 0; i < 2; ++i) {
    t.health(broken ? kLossBad | bit(TensorRole::kParameter) : 0, broken ? "loss" : "");
    t.end_step(broken ? kNaN : 1);
  }
  const Handle x = t.in("fc1", Phase::kForward).value(finite().nan(8));
  t.mark(TensorRole::kBatch, "input 0", x);
  t.mark(TensorRole::kLoss, "loss", t.op("mul", {{"self", x}, {"other", t.value(finite())}}, finite().nan(8)));
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  return analysis_of(t);
}

TEST(StepHealth, a_batch_that_is_bad_after_a_step_that_was_not_kept_may_be_made_by_bad_weights) {
  EXPECT_THAT(table(batch_after_unheard(true)), Not(HasSubstr("bad_input")));
  EXPECT_THAT(table(batch_after_unheard(false)), HasSubstr("bad_input | <batch> | - | data | step 3"));
}

TEST(StepHealth, what_it_alone_shows_to_be_harmed_is_listed) {
  TraceBuilder t;
  clean_steps(t, 1);
  record_loss(t);
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  t.health(kLossBad | bit(TensorRole::kParameter) | bit(TensorRole::kState), "fc1.weight");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.findings[0].sinks, (std::vector<std::string>{"loss", "parameters", "optimizer state"}));
  EXPECT_THAT(
      a.findings[0].evidence,
      Contains(
          "At the end of step 2 there was what is not finite in 1 tensor: the loss, gradients, parameters and "
          "optimizer state (first: fc1.weight)."));
  // and nothing where nothing lasting was bad
  TraceBuilder clean;
  record_loss(clean);
  clean.health(kLossBad, "loss");
  clean.end_step(kNaN);
  EXPECT_EQ(analysis_of(clean).findings[0].sinks, std::vector<std::string>{"loss"});
}

TEST(StepHealth, of_a_bad_step_that_was_not_heard_is_unexplained_and_says_what_to_do) {
  TraceBuilder t;
  clean_steps(t, 1);
  t.unheard("The step was not heard: the budget had no room.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  t.health(kLossBad | bit(TensorRole::kParameter), "fc1.weight");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "unexplained | - | - | loss | step 1 | unknown | inferred\n");
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("the budget had no room."));
  EXPECT_EQ(a.findings[0].advice.at(0).id, "record-ops");
  // Of a damaged trace another level is no answer: what is missing may have been recorded.
  const Analysis damaged = analysis_of(t, 0, {}, 1);
  EXPECT_EQ(damaged.findings[0].advice.at(0).id, "record-again");
  EXPECT_THAT(damaged.findings[0].evidence, Contains(HasSubstr("The trace is damaged")));
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 2u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 1u);
  EXPECT_THAT(a.coverage.unwatched,
              Contains(HasSubstr("1 bad step whose operations are not known. Step 1: The step was not heard: the budget")));
}

TEST(StepHealth, bad_steps_between_good_ones_of_which_no_more_is_known_are_one_finding_with_its_count) {
  const auto strike = [](TraceBuilder& t, std::uint32_t bad) {
    clean_steps(t, 2);
    t.unheard("The step was not heard: the budget had no room.");
    t.health(bad, "loss");
    t.end_step(kNaN);
  };
  TraceBuilder t;
  for (int i = 0; i < 5; ++i) strike(t, kLossBad);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "unexplained | - | - | loss | step 2 | unknown | inferred\n");
  EXPECT_EQ(a.findings[0].bad_steps.count, 5u);
  EXPECT_EQ(a.findings[0].bad_steps.anew, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 4u);
  EXPECT_EQ(a.findings[0].bad_steps.first, 2u);
  EXPECT_EQ(a.findings[0].bad_steps.last, 14u);
  EXPECT_THAT(a.findings[0].evidence, Contains("So it was 4 more times until step 14, with good steps in between."));

  // What is bad elsewhere is a finding of its own, once is no "more times", and good steps alone are clean.
  TraceBuilder two;
  strike(two, kLossBad);
  strike(two, kGradientBad);
  const Analysis apart = analysis_of(two);
  ASSERT_EQ(apart.findings.size(), 2u);
  for (const Finding& f : apart.findings) {
    EXPECT_EQ(f.bad_steps.count, 1u);
    EXPECT_THAT(f.evidence, Not(Contains(HasSubstr("more times"))));
  }
  TraceBuilder good;
  clean_steps(good, 15);
  EXPECT_EQ(table(analysis_of(good)), "clean\n");
}

TEST(StepHealth, what_was_heard_is_not_folded_into_steps_of_which_no_more_is_known) {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    clean_steps(t, 1);
    t.unheard("The step was not heard: the budget had no room.");
    t.health(kLossBad, "loss");
    t.end_step(kNaN);
  }
  clean_steps(t, 1);
  record_loss(t);
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 2u);
  for (const Finding& f : a.findings) EXPECT_EQ(f.bad_steps.count, f.place.op ? 1u : 2u);
}

TEST(StepHealth, bad_parameters_of_a_step_that_was_not_heard_are_no_bad_checkpoint) {
  TraceBuilder t;
  clean_steps(t, 1);
  t.unheard("The step was not heard: too many were kept.");
  t.mark(TensorRole::kParameter, "fc1.weight", t.value(finite().nan(3)));
  t.health(bit(TensorRole::kParameter), "fc1.weight");
  t.end_step();
  // however the records are cut
  for (const std::size_t events : {0u, 1u, 2u, 3u, 5u}) {
    EXPECT_EQ(table(analysis_of(t, events)), "unexplained | - | - | optimizer | step 1 | unknown | inferred\n");
  }
}

// Overflow of scaled gradients that was heard, skipped steps that were not, then clean steps at a lower scale.
TEST(StepHealth, skips_of_a_scaler_that_settles_are_calibration) {
  TraceBuilder t;
  ScalerRecord made;
  made.action = ScalerAction::kCreate;
  made.scale = 65536;
  made.growth_interval = 2000;
  made.growth_factor = 2;
  made.backoff_factor = 0.5;
  t.scaler(made, "torch.amp");
  double scale = 65536;
  for (int i = 0; i < 6; ++i) {
    ScalerRecord r;
    r.scale = scale;
    r.action = ScalerAction::kScale;
    t.scaler(r);
    const bool bad = i < 3;
    if (i == 0) {
      const Handle g = t.in("fc1", Phase::kBackward)
                           .op("mm_backward", {{"grad_output", t.value(finite().range(-1, 6e4).as(DType::kF16))}},
                               finite().inf(2).as(DType::kF16));
      t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
    }
    r.action = bad ? ScalerAction::kSkip : ScalerAction::kStep;
    r.found_inf = bad;
    t.scaler(r);
    const double used = scale;
    if (bad) scale /= 2;
    r.action = ScalerAction::kUpdate;
    r.scale = scale;
    t.scaler(r);
    t.health(bad ? kGradientBad : 0, bad ? "fc1.weight" : "");
    t.end_step(1, used, bad);
  }
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kCalibrating) << table(a);
  EXPECT_EQ(a.findings.at(0).bad_steps.count, 3u);
  EXPECT_THAT(a.findings.at(0).title, HasSubstr("3 steps were held back"));
}

// A scaler skips one step that was not heard, and the next goes through at `then`.
Analysis skipped_unheard(double then) {
  TraceBuilder t;
  t.unheard("The step was not heard: the budget had no room.");
  t.health(kGradientBad, "fc1.weight");
  t.end_step(1, 65536, /*skipped=*/true);
  clean_steps(t, 2, then);
  return analysis_of(t);
}

TEST(StepHealth, of_a_skip_that_was_not_heard_is_calibration_where_a_lower_scale_cured_it) {
  const Analysis cured = skipped_unheard(32768);
  EXPECT_EQ(cured.verdict.status, VerdictStatus::kCalibrating) << table(cured);
  EXPECT_THAT(cured.findings.at(0).explanation, HasSubstr("the budget had no room."));
  // and where the scale stayed, nothing says that it was the scale
  const Analysis same = skipped_unheard(65536);
  EXPECT_EQ(same.verdict.status, VerdictStatus::kInconclusive) << table(same);
  EXPECT_THAT(same.findings.at(0).explanation, HasSubstr("the scale did not cure it"));
}

TEST(StepHealth, a_loss_that_goes_bad_after_held_back_steps_is_a_story_of_its_own) {
  TraceBuilder t;
  t.health(kGradientBad, "fc1.weight");
  t.end_step(1, 65536, /*skipped=*/true);
  t.health(kLossBad, "loss");
  t.end_step(kNaN, 32768);
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 2u) << table(a);
  EXPECT_EQ(a.findings[0].place.step, 1u);
  EXPECT_EQ(a.findings[0].severity, Severity::kFault);
}

TEST(StepHealth, growth_of_loss_and_weights_before_a_bad_step_is_exploding) {
  TraceBuilder t;
  double loss = 1, weights = 1;
  for (int i = 0; i < 6; ++i, loss *= 10, weights *= 3) {
    t.health(0, "", loss);
    t.end_step(loss);
  }
  const Handle large = t.value(finite().range(-1, 1e38)), other = t.value(finite().range(-1, 1e20));
  const Handle y = t.in("fc1").op("mul", {{"self", large}, {"other", other}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", y);
  for (std::uint32_t i = 0; i < 6; ++i) {
    t.norm("fc1.weight", i, std::pow(3.0, i), 1);
    t.norm("fc2.weight", i, std::pow(3.0, i), 1);
  }
  t.health(kLossBad, "loss", kNaN);
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  ASSERT_FALSE(a.findings.empty());
  EXPECT_EQ(finding_class_name(a.findings[0].cls), "exploding") << table(a);
  EXPECT_EQ(a.timeline.at(3).gradient_norm, 1000);
}

TEST(StepHealth, a_product_with_the_scale_that_overflows_harms_nothing_in_steps_without_ops_either) {
  // Given skipped steps in which the scaled loss and gradients were bad, the first of them in the trace,
  const auto skipped = [](std::uint32_t bad_later, int clean_after) {
    TraceBuilder t;
    clean_steps(t, 2, 65536);
    double scale = 65536;
    for (int i = 0; i < 4; ++i, scale /= 2) {
      const Numbers loss = finite(1).range(1e38, 1e38), slope = finite(1).range(scale, scale);
      const Numbers infinite = finite(1).inf(1);
      if (i == 0) {
        t.in("<loss>", Phase::kScale);
        t.mark(TensorRole::kLoss, "loss", t.op("mul", {{"self", t.value(loss)}}, infinite, {{"other", scale}}));
        t.in("<loss>", Phase::kBackward);
        const Handle gradient = t.op("mul", {{"self", t.value(slope)}}, infinite, {{"other", 1e38}});
        t.mark(TensorRole::kBoundaryGradient, "w", gradient);
      }
      t.health(i == 0 ? kLossBad : bad_later, "the loss");
      t.end_step(1, scale, true);
    }
    clean_steps(t, clean_after, scale);
    return analysis_of(t);
  };
  // when it is judged, then it is the scaler's as long as nothing else was bad.
  const Analysis open = skipped(kLossBad, 0), over = skipped(kLossBad, 2);
  EXPECT_EQ(open.verdict.status, VerdictStatus::kInconclusive) << table(open);
  EXPECT_EQ(over.verdict.status, VerdictStatus::kCalibrating) << table(over);
  EXPECT_EQ(skipped(kLossBad | bit(TensorRole::kParameter), 2).verdict.status, VerdictStatus::kFault);
}

TEST(StepHealth, a_parameter_that_changed_unseen_is_held_against_the_norms_before) {
  TraceBuilder t;
  clean_steps(t, 3);
  const Handle w = t.value(finite().range(-1, 1e30));
  TraceBuilder copy = t;  // the twin: the same, but nothing changed
  // when: a change whose contents before only a checksum knew
  const Handle after = t.changed({0, w.storage, w.version}, finite().range(-1, 1e30));
  t.norm("fc1.weight", 3, 2, 0.5);
  auto go_on = [](TraceBuilder& trace, const Handle& weight) {
    trace.mark(TensorRole::kParameter, "fc1.weight", weight);
    const Handle y = trace.in("fc1").op("pow", {{"self", weight}}, finite().inf(1), {{"exponent", 2.0}});
    trace.mark(TensorRole::kLoss, "loss", y);
    trace.health(kLossBad, "fc1.weight");
    trace.end_step(kNaN);
  };
  go_on(t, after);
  go_on(copy, w);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "corruption | <state> | fc1.weight | data | step 3 | unknown | inferred\n");
  EXPECT_THAT(a.findings[0].evidence, Contains("Before: largest magnitude 0.5."));
  EXPECT_EQ(table(analysis_of(copy)), "overflow | pow | fc1 | forward | step 3 | appear | observed\n");
}

TEST(StepHealth, bad_steps_that_were_not_heard_are_laid_on_contents_that_changed_before) {
  TraceBuilder t;
  clean_steps(t, 3);
  for (std::uint32_t step = 0; step < 4; ++step) t.norm("fc1.weight", step, 2, 0.5);
  const Handle w = t.changed({0, 77, 3}, finite().range(-1, 1e30));
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.in("fc1").op("neg", {{"self", w}}, finite().range(-1e30, 1));
  t.health();
  t.end_step();
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "corruption | <state> | fc1.weight | data | step 3 | unknown | inferred\n");
  EXPECT_EQ(a.findings[0].first_step, 3u);
  EXPECT_EQ(a.findings[0].bad_steps.first, 4u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 1u);
  EXPECT_THAT(a.findings[0].evidence, Contains("Before: largest magnitude 0.5."));
}

// A buffer overflows in step 1 of 5, and no op is heard after the next step. Buffers are read or not; in
// step 2 an op may write it anew.
BadSteps left_bad(bool reads, bool rewritten, int more = 2) {
  TraceBuilder t;
  Handle buffer = t.value(finite(4).range(-10, 10));
  clean_steps(t, 1);
  t.mark(TensorRole::kBuffer, "norm.var", buffer);
  t.in("norm").in_place("mul_", buffer, {}, finite(4).inf(4), {{"other", 1e38}});
  t.mark(TensorRole::kBuffer, "norm.var", buffer);
  t.health(reads ? bit(TensorRole::kBuffer) : 0, reads ? "norm.var" : "");
  t.end_step();
  if (rewritten) t.in("norm").in_place("copy_", buffer, {{"src", t.value(finite(4))}}, finite(4));
  clean_steps(t, more);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | mul_ | norm | forward | step 1 | appear | observed\n");
  return a.findings.at(0).bad_steps;
}

TEST(StepHealth, bad_steps_have_an_open_end_where_what_was_left_bad_is_not_read_afterwards) {
  const BadSteps unread = left_bad(false, false);
  EXPECT_TRUE(unread.open);
  EXPECT_EQ(unread.count, 1u);
  EXPECT_FALSE(left_bad(true, false).open) << "it was finite";
  EXPECT_FALSE(left_bad(false, true).open);
  EXPECT_FALSE(left_bad(false, false, 0).open) << "no step came after";
}

}  // namespace
}  // namespace nanhunt
