// SPDX-License-Identifier: Apache-2.0
// Traces of level sentinel: one HealthRecord a step, and the records of the steps that were replayed.
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
// log of a zero makes the loss infinite. `bad`: false in a replay that stays finite.
void record_loss(TraceBuilder& t, bool bad = true) {
  const Handle p = t.in("fc1").op("softmax", {{"self", t.value(finite())}}, finite().zeros(bad ? 1 : 0).range(0, 1));
  const Handle l = t.in("<loss>", Phase::kLoss).op("log", {{"self", p}}, bad ? finite().neg_inf(1) : finite());
  t.mark(TensorRole::kLoss, "loss", l);
}
void replayed(TraceBuilder& t, ReplayResult result, bool bad, const std::string& text) {
  t.replay(ReplayResult::kBegin);
  record_loss(t, bad);
  t.replay(result, text);
}

TEST(Sentinel, a_replayed_step_is_judged_as_at_level_ops) {
  TraceBuilder t;
  clean_steps(t, 3);
  replayed(t, ReplayResult::kReproduced, true, "Compared: the loss.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | log | <loss> | loss | step 3 | appear | observed\n");
  EXPECT_THAT(a.findings[0].evidence,
              Contains("Seen in a replay of step 3. Compared: the loss."));
  EXPECT_THAT(a.coverage.unwatched, Contains(HasSubstr("updates that rounding lost")));
  EXPECT_EQ(a.coverage.steps, 4u);
}

TEST(Sentinel, clean_steps_alone_are_clean) {
  TraceBuilder t;
  clean_steps(t, 5);
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Sentinel, later_bad_steps_without_a_replay_count_for_the_origin) {
  TraceBuilder t;
  clean_steps(t, 1);
  replayed(t, ReplayResult::kReproduced, true, "");
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

TEST(Sentinel, what_its_summaries_alone_show_to_be_harmed_is_listed) {
  TraceBuilder t;
  clean_steps(t, 1);
  replayed(t, ReplayResult::kReproduced, true, "");  // a replay ends before the optimizer
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  t.health(kLossBad | bit(TensorRole::kParameter) | bit(TensorRole::kState), "fc1.weight");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(a.findings[0].sinks, (std::vector<std::string>{"loss", "parameters", "optimizer state"}));
  EXPECT_THAT(
      a.findings[0].evidence,
      Contains(
          "In step 2 the sentinel found what is not finite in 1 tensor: the loss, gradients, parameters and optimizer "
          "state (first: fc1.weight)."));
  // and nothing where nothing lasting was bad
  TraceBuilder clean;
  replayed(clean, ReplayResult::kReproduced, true, "");
  clean.health(kLossBad, "loss");
  clean.end_step(kNaN);
  EXPECT_EQ(analysis_of(clean).findings[0].sinks, std::vector<std::string>{"loss"});
}

TEST(Sentinel, a_replay_that_differs_is_believed_less) {
  TraceBuilder t;
  replayed(t, ReplayResult::kDiffers, true, "The loss has other bits.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "divide_by_zero | log | <loss> | loss | step 0 | appear | inferred\n");
  EXPECT_THAT(a.findings[0].evidence, Contains(HasSubstr("that was bad in another way. The loss has other bits.")));
}

TEST(NotReproducible, a_step_that_stays_finite_when_replayed_is_named_with_what_it_harmed) {
  TraceBuilder t;
  clean_steps(t, 2);
  replayed(t, ReplayResult::kClean, false, "Nothing became bad in the replay.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  // the optimizer has put NaN into the weights: the next replay begins with them
  t.replay(ReplayResult::kBegin);
  const Handle w = t.value(finite().nan(8));
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  const Handle y = t.in("fc1").op("mm", {{"self", w}, {"mat2", t.value(finite())}}, finite().nan(8));
  t.mark(TensorRole::kLoss, "loss", y);
  t.replay(ReplayResult::kReproduced);
  t.health(kLossBad | bit(TensorRole::kParameter), "fc1.weight");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "not_reproducible | - | - | loss | step 2 | unknown | observed\n");
  EXPECT_THAT(a.findings[0].title,
              HasSubstr("Step 2 went bad once and cannot be made to again: the loss and gradients"));
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 2u);
  EXPECT_EQ(a.findings[0].bad_steps.anew, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 0u);
}

TEST(NotReproducible, without_harm_is_a_warning_and_a_replay_that_goes_bad_again_is_no_such_thing) {
  TraceBuilder t;
  replayed(t, ReplayResult::kClean, false, "");
  t.health(kGradientBad, "fc1.weight");
  t.end_step(1, 1024, /*skipped=*/true);
  clean_steps(t, 1, 512);
  EXPECT_EQ(table(analysis_of(t)), "warning not_reproducible | - | - | backward | step 0 | unknown | observed\n");
}

TEST(Sentinel, a_bad_step_without_any_replay_is_unexplained_and_says_what_to_do) {
  TraceBuilder t;
  clean_steps(t, 1);
  t.replay(ReplayResult::kRefused, "Replays are switched off.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  t.health(kLossBad | bit(TensorRole::kParameter), "fc1.weight");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "unexplained | - | - | loss | step 1 | unknown | inferred\n");
  EXPECT_THAT(a.findings[0].explanation, HasSubstr("Replays are switched off."));
  EXPECT_EQ(a.findings[0].advice.at(0).id, "record-ops");
  // Of a damaged trace another level is no answer: what is missing may have been recorded.
  const Analysis damaged = analysis_of(t, 0, {}, 1);
  EXPECT_EQ(damaged.findings[0].advice.at(0).id, "record-again");
  EXPECT_THAT(damaged.findings[0].evidence, Contains(HasSubstr("The trace is damaged")));
  EXPECT_EQ(a.findings[0].occurrence_count, 1u);
  EXPECT_EQ(a.findings[0].bad_steps.count, 2u);
  EXPECT_EQ(a.findings[0].bad_steps.unwatched, 1u);
  EXPECT_THAT(a.coverage.unwatched,
              Contains(HasSubstr("1 bad step that could not be replayed. Step 1: Replays are switched off.")));
}

TEST(Sentinel, bad_steps_between_good_ones_of_which_no_more_is_known_are_one_finding_with_its_count) {
  const auto strike = [](TraceBuilder& t, std::uint32_t bad) {
    clean_steps(t, 2);
    t.replay(ReplayResult::kRefused, "Replays are switched off.");
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

TEST(Sentinel, what_was_replayed_is_not_folded_into_steps_of_which_no_more_is_known) {
  TraceBuilder t;
  for (int i = 0; i < 2; ++i) {
    clean_steps(t, 1);
    t.replay(ReplayResult::kRefused, "Replays are switched off.");
    t.health(kLossBad, "loss");
    t.end_step(kNaN);
  }
  clean_steps(t, 1);
  replayed(t, ReplayResult::kReproduced, true, "");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  ASSERT_EQ(a.findings.size(), 2u);
  for (const Finding& f : a.findings) EXPECT_EQ(f.bad_steps.count, f.place.op ? 1u : 2u);
}

TEST(Sentinel, a_refused_steps_bad_parameters_are_no_bad_checkpoint) {
  TraceBuilder t;
  clean_steps(t, 1);
  t.replay(ReplayResult::kRefused, "No replay is left.");
  t.mark(TensorRole::kParameter, "fc1.weight", t.value(finite().nan(3)));
  t.health(bit(TensorRole::kParameter), "fc1.weight");
  t.end_step();
  // however the records are cut
  for (const std::size_t events : {0u, 1u, 2u, 3u, 5u}) {
    EXPECT_EQ(table(analysis_of(t, events)), "unexplained | - | - | optimizer | step 1 | unknown | inferred\n");
  }
}

// Overflow of scaled gradients in a replay, skipped steps without one, then clean steps at a lower scale.
TEST(Sentinel, skips_of_a_scaler_that_settles_are_calibration) {
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
      t.replay(ReplayResult::kBegin);
      const Handle g = t.in("fc1", Phase::kBackward)
                           .op("mm_backward", {{"grad_output", t.value(finite().range(-1, 6e4).as(DType::kF16))}},
                               finite().inf(2).as(DType::kF16));
      t.mark(TensorRole::kBoundaryGradient, "fc1.weight", g);
      t.replay(ReplayResult::kReproduced);
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

// A scaler skips one step that was not replayed, and the next goes through at `then`.
Analysis skipped_without_replays(double then) {
  TraceBuilder t;
  t.replay(ReplayResult::kRefused, "Replays are switched off.");
  t.health(kGradientBad, "fc1.weight");
  t.end_step(1, 65536, /*skipped=*/true);
  clean_steps(t, 2, then);
  return analysis_of(t);
}

TEST(Sentinel, a_skip_whose_replay_was_refused_is_calibration_where_a_lower_scale_cured_it) {
  const Analysis cured = skipped_without_replays(32768);
  EXPECT_EQ(cured.verdict.status, VerdictStatus::kCalibrating) << table(cured);
  EXPECT_THAT(cured.findings.at(0).explanation, HasSubstr("Replays are switched off."));
  // and where the scale stayed, nothing says that it was the scale
  const Analysis same = skipped_without_replays(65536);
  EXPECT_EQ(same.verdict.status, VerdictStatus::kInconclusive) << table(same);
  EXPECT_THAT(same.findings.at(0).explanation, HasSubstr("the scale did not cure it"));
}

TEST(NotReproducible, a_replay_with_other_numbers_is_not_said_to_have_stayed_finite) {
  TraceBuilder t;
  replayed(t, ReplayResult::kDiffers, false, "The loss has other bits.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "not_reproducible | - | - | loss | step 0 | unknown | inferred\n");
  EXPECT_THAT(a.findings[0].title, HasSubstr("Step 0 went bad, and its replay came out otherwise"));
  EXPECT_THAT(a.findings[0].explanation, ::testing::Not(HasSubstr("stayed finite")));
}

TEST(NotReproducible, is_told_although_steps_before_it_were_skipped_without_a_replay) {
  TraceBuilder t;
  t.health(kGradientBad, "fc1.weight");
  t.end_step(1, 65536, /*skipped=*/true);
  replayed(t, ReplayResult::kClean, false, "Nothing became bad in the replay.");
  t.health(kLossBad, "loss");
  t.end_step(kNaN, 32768);
  clean_steps(t, 1, 32768);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a),
            "not_reproducible | - | - | loss | step 1 | unknown | observed\n"
            "info scaler_calibration | - | - | backward | step 0 | unknown | inferred\n");
}

TEST(Sentinel, a_loss_that_goes_bad_after_held_back_steps_is_a_story_of_its_own) {
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

TEST(Sentinel, growth_of_loss_and_weights_before_the_trip_is_exploding) {
  TraceBuilder t;
  double loss = 1, weights = 1;
  for (int i = 0; i < 6; ++i, loss *= 10, weights *= 3) {
    t.health(0, "", loss);
    t.end_step(loss);
  }
  t.replay(ReplayResult::kBegin);
  const Handle large = t.value(finite().range(-1, 1e38)), other = t.value(finite().range(-1, 1e20));
  const Handle y = t.in("fc1").op("mul", {{"self", large}, {"other", other}}, finite().inf(1));
  t.mark(TensorRole::kLoss, "loss", y);
  t.replay(ReplayResult::kReproduced);
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

TEST(Sentinel, a_product_with_the_scale_that_overflows_harms_nothing_in_steps_without_ops_either) {
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

TEST(Sentinel, a_parameter_that_changed_unseen_is_held_against_the_norms_before) {
  TraceBuilder t;
  clean_steps(t, 3);
  const Handle w = t.value(finite().range(-1, 1e30));
  TraceBuilder copy = t;  // the twin: the same, but nothing changed
  // when: a change whose contents before only the sentinel's checksum knew
  const Handle after = t.changed({0, w.storage, w.version}, finite().range(-1, 1e30));
  t.norm("fc1.weight", 3, 2, 0.5);
  auto go_on = [](TraceBuilder& trace, const Handle& weight) {
    trace.replay(ReplayResult::kBegin, "", ReplayTrigger::kChanged);
    trace.mark(TensorRole::kParameter, "fc1.weight", weight);
    const Handle y = trace.in("fc1").op("pow", {{"self", weight}}, finite().inf(1), {{"exponent", 2.0}});
    trace.mark(TensorRole::kLoss, "loss", y);
    trace.replay(ReplayResult::kReproduced);
    trace.health(kLossBad | kHealthChanged, "fc1.weight");
    trace.end_step(kNaN);
  };
  go_on(t, after);
  go_on(copy, w);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "corruption | <state> | fc1.weight | data | step 3 | unknown | inferred\n");
  EXPECT_THAT(a.findings[0].evidence, Contains("Before: largest magnitude 0.5."));
  EXPECT_EQ(table(analysis_of(copy)), "overflow | pow | fc1 | forward | step 3 | appear | observed\n");
}

TEST(Sentinel, bad_steps_that_were_not_replayed_are_laid_on_contents_that_changed_before) {
  TraceBuilder t;
  clean_steps(t, 3);
  for (std::uint32_t step = 0; step < 4; ++step) t.norm("fc1.weight", step, 2, 0.5);
  const Handle w = t.changed({0, 77, 3}, finite().range(-1, 1e30));
  t.replay(ReplayResult::kBegin, "", ReplayTrigger::kChanged);
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.in("fc1").op("neg", {{"self", w}}, finite().range(-1e30, 1));
  t.replay(ReplayResult::kReproduced);
  t.health(kHealthChanged, "fc1.weight");
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

// A buffer overflows in step 1 of 5, and no op is heard after the next step. The sentinel reads buffers or does not; in
// step 2 an op may write it anew.
BadSteps left_bad(bool reads, bool rewritten, int more = 2) {
  TraceBuilder t;
  Handle buffer = t.value(finite(4).range(-10, 10));
  clean_steps(t, 1);
  t.mark(TensorRole::kBuffer, "norm.var", buffer);
  if (reads) t.replay(ReplayResult::kBegin);
  t.in("norm").in_place("mul_", buffer, {}, finite(4).inf(4), {{"other", 1e38}});
  t.mark(TensorRole::kBuffer, "norm.var", buffer);
  if (reads) t.replay(ReplayResult::kReproduced, "");
  t.health(reads ? bit(TensorRole::kBuffer) : 0, reads ? "norm.var" : "");
  t.end_step();
  if (rewritten) t.in("norm").in_place("copy_", buffer, {{"src", t.value(finite(4))}}, finite(4));
  clean_steps(t, more);
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "overflow | mul_ | norm | forward | step 1 | appear | observed\n");
  return a.findings.at(0).bad_steps;
}

TEST(Sentinel, bad_steps_have_an_open_end_where_what_was_left_bad_is_not_read_afterwards) {
  const BadSteps unread = left_bad(false, false);
  EXPECT_TRUE(unread.open);
  EXPECT_EQ(unread.count, 1u);
  EXPECT_FALSE(left_bad(true, false).open) << "the sentinel found it finite";
  EXPECT_FALSE(left_bad(false, true).open);
  EXPECT_FALSE(left_bad(false, false, 0).open) << "no step came after";
}

}  // namespace
}  // namespace nanhunt
