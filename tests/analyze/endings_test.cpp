// SPDX-License-Identifier: Apache-2.0
// Steps that no optimizer ended are judged by the last number that they made; what the program said is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kLog = "invalid | log | <loss> | loss | step 1 | appear | observed\n";

void healthy_step(TraceBuilder& t) {
  t.in("<loss>", Phase::kLoss);
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", t.value(finite())}}, finite(1)));
  t.end_step();
}

// A loss that nothing marks: the program looked at it before any backward. `bad`: it is log(-1).
void loss(TraceBuilder& t, bool bad) {
  t.in("<loss>", Phase::kLoss);
  const Handle x = t.op("mean", {{"self", t.value(finite())}}, bad ? finite(1).range(-1, -1) : finite(1).range(1, 1));
  const Handle y = t.op("log", {{"self", x}}, bad ? finite(1).nan(1) : finite(1));
  // torch.isfinite(loss)
  t.op("eq", {{"self", y}, {"other", y}}, finite(1).as(DType::kBool));
  t.op("abs", {{"self", y}}, bad ? finite(1).nan(1) : finite(1));
}

struct Given {
  StepEnding ending;
  const char* message;
  const char* words;
};
const Given kStops[] = {
    {StepEnding::kException, "AssertionError: loss", "The program stopped here, in step 1, with an exception. It said: "
                                                     "\"AssertionError: loss\"."},
    {StepEnding::kExit, "sys.exit(3)", "The program stopped here: it ended itself in step 1."},
    {StepEnding::kEnd, "", "Step 1 is the last one of the run"}};

TEST(Endings, a_step_that_the_program_stopped_at_is_a_fault_where_its_last_number_is_bad) {
  for (const Given& given : kStops) {
    for (const bool bad : {true, false}) {
      TraceBuilder t;
      healthy_step(t);
      loss(t, bad);
      t.give_up(given.ending, given.message);
      const Analysis a = analysis_of(t);
      EXPECT_EQ(table(a), bad ? kLog : "clean\n") << given.words;
      if (!bad) continue;
      EXPECT_EQ(a.findings[0].severity, Severity::kFault);
      EXPECT_THAT(a.findings[0].explanation, StartsWith(given.words));
      EXPECT_THAT(a.findings[0].sinks, Contains("what the step ended with"));
    }
  }
}

TEST(Endings, what_the_program_skips_and_gets_over_is_a_warning_that_says_how_often) {
  for (const bool over : {true, false}) {
    TraceBuilder t;
    healthy_step(t);
    loss(t, true);
    t.give_up(StepEnding::kNextForward);
    if (over) healthy_step(t);
    const Analysis a = analysis_of(t);
    EXPECT_EQ(a.verdict.status, over ? VerdictStatus::kWarning : VerdictStatus::kFault);
    ASSERT_EQ(a.findings.size(), 1u);
    EXPECT_THAT(a.findings[0].explanation,
                StartsWith(over ? "The program skipped this step: in 1 of 3 steps" : "The program skipped this step: in 1 of 2"));
  }
}

TEST(Endings, skipped_steps_whose_ops_are_not_known_are_a_warning_where_nothing_lasts_of_them) {
  const std::uint32_t loss = 1u << static_cast<unsigned>(TensorRole::kLoss);
  const std::uint32_t parameter = 1u << static_cast<unsigned>(TensorRole::kParameter);
  for (const std::uint32_t bad : {loss, loss | parameter}) {
    for (const bool over : {true, false}) {
      TraceBuilder t;
      t.health();
      t.end_step();
      for (int i = 0; i < 3; ++i) {
        t.health(bad, "the loss");
        t.give_up(StepEnding::kNextForward);
        if (i == 2 && !over) break;
        t.health();
        t.end_step();
      }
      const bool warns = over && bad == loss;
      EXPECT_EQ(analysis_of(t).verdict.status, warns ? VerdictStatus::kWarning : VerdictStatus::kFault) << bad << over;
    }
  }
}

TEST(Endings, a_trace_without_an_end_is_judged_by_its_last_step) {
  for (const bool bad : {true, false}) {
    for (const bool clean_end : {false, true}) {
      TraceBuilder t;
      healthy_step(t);
      loss(t, bad);  // and nothing after it
      const auto analyzer = Analyzer::make();
      for (const RecordBatch& batch : t.batches(0)) analyzer->add(batch);
      TraceHealth health;
      health.clean_end = clean_end;  // false: the process was killed
      EXPECT_EQ(table(analyzer->finish(RunInfo{}, health)), bad && !clean_end ? kLog : "clean\n");
    }
  }
}

TEST(Endings, masks_and_infinities_of_many_elements_are_no_ending) {
  TraceBuilder t;
  healthy_step(t);
  const Handle logits = t.in("head").op("add", {{"self", t.value(finite(16))}, {"other", t.value(finite(16))}},
                                        finite(16).neg_inf(6));
  t.op("softmax", {{"self", logits}}, finite(16).zeros(6));
  t.give_up(StepEnding::kEnd);
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

// A layer overflows, and the program asks whether all it made is finite.
enum class Then { kEnds, kClamps, kAsksAboutMask, kAsksNothing };
void layer(TraceBuilder& t, Then then) {
  t.in("head", Phase::kForward);
  const bool masks = then == Then::kAsksAboutMask;
  const Handle x = masks ? t.op("masked_fill", {{"self", t.value(finite(16))}}, finite(16).neg_inf(6), {{"value", -INFINITY}})
                         : t.op("mul", {{"self", t.value(finite(16).range(0, 3e38))}, {"other", t.value(finite(16).range(0, 3e38))}},
                                finite(16).inf(2));
  if (then == Then::kAsksNothing) return;
  const Handle answers = t.op("isinf", {{"self", x}}, finite(16).as(DType::kBool));
  t.op("any", {{"self", answers}}, finite(1).as(DType::kBool));
  if (then == Then::kClamps) t.op("clamp", {{"self", x}}, finite(16));
}

// A copy of the loss is made finite for a log.
TEST(Endings, a_number_that_the_program_stopped_at_is_a_fault_whatever_was_made_of_a_copy) {
  for (const StepEnding ending : {StepEnding::kException, StepEnding::kExit, StepEnding::kEnd}) {
    for (const bool bad : {true, false}) {
      TraceBuilder t;
      healthy_step(t);
      t.in("<loss>", Phase::kLoss);
      const Handle x = t.value(bad ? finite(1).range(-1, -1) : finite(1).range(1, 1));
      const Handle y = t.op("sqrt", {{"self", x}}, bad ? finite(1).nan(1) : finite(1));
      t.op("nan_to_num", {{"self", y}}, finite(1));
      t.give_up(ending, ending == StepEnding::kEnd ? "" : "SystemExit: loss is NaN");
      const Analysis a = analysis_of(t);
      EXPECT_EQ(a.verdict.status == VerdictStatus::kFault, bad) << table(a);
      if (bad) {
        EXPECT_EQ(a.findings.at(0).place.op, "sqrt");
      }
    }
  }
}

TEST(Endings, infinities_that_the_program_looked_at_before_it_stopped_are_a_fault) {
  for (const Then then : {Then::kEnds, Then::kClamps, Then::kAsksAboutMask, Then::kAsksNothing}) {
    for (const StepEnding ending : {StepEnding::kException, StepEnding::kExit, StepEnding::kNextForward}) {
      TraceBuilder t;
      healthy_step(t);
      layer(t, then);
      t.give_up(ending, "ValueError: not finite");
      const bool told = then == Then::kEnds && ending != StepEnding::kNextForward;
      const Analysis a = analysis_of(t);
      EXPECT_EQ(a.verdict.status == VerdictStatus::kFault, told) << static_cast<int>(then);
      if (told) {
        EXPECT_EQ(table(a), "overflow | mul | head | forward | step 1 | appear | observed\n");
      }
    }
  }
}

TEST(Endings, a_bad_number_of_a_step_that_its_optimizer_ended_is_not_its_end) {
  TraceBuilder t;
  loss(t, true);  // looked at, and not used
  t.mark(TensorRole::kLoss, "loss", t.op("mean", {{"self", t.value(finite())}}, finite(1)));
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "clean\n");
}

TEST(Endings, a_validation_is_judged_by_itself) {
  for (const bool bad : {true, false}) {
    TraceBuilder t;
    healthy_step(t);
    t.in("head", Phase::kValidation);
    const Handle out = t.op("mul", {{"self", t.value(finite().inf(bad ? 1 : 0))}, {"other", t.value(finite().zeros(1))}},
                            bad ? finite().nan(1) : finite());
    t.mark(TensorRole::kOutput, "", out);
    healthy_step(t);
    const Analysis a = analysis_of(t);
    EXPECT_EQ(a.verdict.status, bad ? VerdictStatus::kFault : VerdictStatus::kClean);
    if (bad) {
      EXPECT_TRUE(a.findings[0].unfinished);
      EXPECT_THAT(a.findings[0].sinks, Contains("what a validation computed"));
    }
  }
}

TEST(Endings, a_bad_validation_before_a_program_ends_in_order_does_not_say_that_it_stopped_there) {
  for (const StepEnding ending : {StepEnding::kEnd, StepEnding::kException}) {
    TraceBuilder t;
    healthy_step(t);
    t.in("", Phase::kValidation);
    t.op("log", {{"self", t.value(finite(1).range(-1, -1))}}, finite(1).nan(1));
    t.give_up(ending, ending == StepEnding::kEnd ? "" : "ValueError: NaN");
    const Analysis a = analysis_of(t);
    ASSERT_EQ(a.findings.size(), 1u);
    EXPECT_EQ(a.findings[0].severity, ending == StepEnding::kEnd ? Severity::kWarning : Severity::kFault);
    EXPECT_EQ(a.findings[0].explanation.starts_with("The program stopped here, in step 1, with an exception."),
              ending == StepEnding::kException);
    EXPECT_EQ(a.findings[0].explanation.find("stopped") == std::string::npos, ending == StepEnding::kEnd);
  }
}

TEST(Endings, a_number_that_a_validation_computes_is_judged_and_of_many_those_that_a_model_gave) {
  struct Case {
    Numbers made;
    bool bad;
  };
  // NaN among many may be padding that nobody selects; -Inf that is selected may be a mask.
  const Case cases[] = {{finite(1).nan(1), true}, {finite(1).inf(1), true}, {finite(1), false}, {finite().nan(1), false}};
  for (const Case& given : cases) {
    TraceBuilder t;
    healthy_step(t);
    t.in("", Phase::kValidation);
    t.op("mean", {{"self", t.value(finite())}}, given.made);
    const Handle scores = t.op("masked_fill", {{"self", t.value(finite())}}, finite().neg_inf(2), {{"value", -INFINITY}});
    t.op("min", {{"self", scores}}, finite(1).neg_inf(1));
    healthy_step(t);
    EXPECT_EQ(analysis_of(t).verdict.status, given.bad ? VerdictStatus::kFault : VerdictStatus::kClean);
  }
}

TEST(Endings, an_exception_over_sound_numbers_is_told_and_is_no_finding) {
  TraceBuilder t;
  healthy_step(t);
  loss(t, false);
  t.give_up(StepEnding::kException, "KeyError: 'labels'");
  const Analysis a = analysis_of(t);
  EXPECT_EQ(table(a), "clean\n");
  EXPECT_THAT(a.coverage.unwatched, Contains(HasSubstr("KeyError: 'labels' ended it")));
  EXPECT_THAT(a.verdict.headline, HasSubstr("the program ended with an exception: \"KeyError: 'labels'\""));
}

TEST(Endings, an_exception_between_two_steps_is_told_in_the_headline_and_one_that_was_caught_is_not) {
  TraceBuilder t;
  healthy_step(t);
  loss(t, false);
  t.give_up(StepEnding::kOptimizer, "KeyError: 'labels'");
  EXPECT_THAT(analysis_of(t).verdict.headline, HasSubstr("ended with an exception: \"KeyError: 'labels'\""));
  healthy_step(t);
  const Analysis went_on = analysis_of(t);
  EXPECT_EQ(table(went_on), "clean\n");
  EXPECT_THAT(went_on.verdict.headline, Not(HasSubstr("exception")));
}

TEST(Endings, clean_is_earned_step_by_step) {
  TraceBuilder unjudged;
  unjudged.health();
  unjudged.end_step();
  unjudged.end_step();  // no health row
  const Analysis a = analysis_of(unjudged);
  EXPECT_EQ(a.verdict.status, VerdictStatus::kInconclusive);
  EXPECT_THAT(a.verdict.headline, HasSubstr("1 of 2 steps could not be judged"));

  TraceBuilder nothing;
  nothing.op("mean", {{"self", nothing.value(finite())}}, finite(1));
  EXPECT_EQ(analysis_of(nothing).verdict.headline, "No training step was seen, so none was judged");

  TraceBuilder blind;
  blind.end_step();
  EXPECT_EQ(analysis_of(blind).verdict.headline, "Nothing harmful was seen in 1 step, but no operation was watched");

  TraceBuilder elsewhere;
  elsewhere.op("mean", {{"self", elsewhere.value(finite())}}, finite(1));
  elsewhere.note("training in other threads than the first that trained: one thread is watched", 3);
  elsewhere.end_step();
  EXPECT_EQ(analysis_of(elsewhere).verdict.status, VerdictStatus::kInconclusive);

  for (const char* what : {"unread gradients: sparse", "unread parameters: sparse"}) {
    TraceBuilder unread;
    unread.op("mean", {{"self", unread.value(finite())}}, finite(1));
    unread.note(what, 1);
    unread.end_step();
    EXPECT_EQ(analysis_of(unread).verdict.headline,
              "Nothing harmful was seen in 1 step and 1 op, but gradients or parameters of a kind that is not read were "
              "trained");
  }

  TraceBuilder there;
  there.op("mean", {{"self", there.value(finite())}}, finite(1));
  there.note("unread values: float8_e5m2 on a device", 2);
  there.end_step();
  EXPECT_EQ(analysis_of(there).verdict.headline,
            "Nothing harmful was seen in 1 step and 1 op, but some values were not read: float8_e5m2 on a device");

  TraceBuilder twin;
  twin.op("mean", {{"self", twin.value(finite())}}, finite(1));
  twin.note("calls in other threads than the first that trained: one thread is watched", 3);
  twin.end_step();
  EXPECT_EQ(table(analysis_of(twin)), "clean\n");
}

TEST(Endings, how_steps_ended_that_are_not_told_apart_is_counted_and_the_last_exception_is_remembered) {
  for (const int more : {0, 3}) {
    TraceBuilder t;
    healthy_step(t);
    for (int i = 0; i < 4096 + more; ++i) t.give_up(StepEnding::kNextForward);
    t.give_up(StepEnding::kException, "KeyError: 'labels'");
    const Analysis a = analysis_of(t);
    const bool counted = std::any_of(a.coverage.unwatched.begin(), a.coverage.unwatched.end(), [](const std::string& line) {
      return line.starts_with("How 3 further steps ended");
    });
    EXPECT_EQ(counted, more == 3);
    EXPECT_THAT(a.coverage.unwatched, Contains(HasSubstr("KeyError: 'labels' ended it.")));
  }
}

}  // namespace
}  // namespace nanhunt
