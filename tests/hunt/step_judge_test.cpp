// SPDX-License-Identifier: Apache-2.0
// How far a step has come, and what follows of what is bad in it, the same for whoever watches it.
#include "src/hunt/step_judge.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanhunt::hunt {
namespace {

using Reads = StepJudge::Reads;
using GivesUp = StepJudge::GivesUp;

void train(StepJudge& judge, std::uint32_t step) {
  for (const StepState state : {StepState::kForward, StepState::kLoss, StepState::kBackward}) judge.pass(state);
  judge.reads_gradients(step, /*last=*/true, /*written=*/false);
  judge.pass_boundary(step);
  judge.pass(StepState::kOptimizer);
}

TEST(StepJudge, knows_how_far_a_step_has_come_and_goes_back_only_at_its_end) {
  StepJudge judge;
  EXPECT_EQ(judge.state(), StepState::kBegun);
  train(judge, 0);
  judge.pass(StepState::kForward);  // a validation with gradients, say
  EXPECT_EQ(judge.state(), StepState::kOptimizer);
  judge.end(StepEnding::kOptimizer);
  EXPECT_EQ(judge.state(), StepState::kEnded);
  judge.pass(StepState::kLoss);
  EXPECT_FALSE(judge.is_open());
  judge.pass(StepState::kForward);
  EXPECT_EQ(judge.state(), StepState::kForward);
}

TEST(StepJudge, takes_a_backward_without_a_model_for_no_step) {
  StepJudge judge;
  judge.pass(StepState::kLoss);
  judge.pass(StepState::kBackward);
  EXPECT_EQ(judge.state(), StepState::kBegun);
  EXPECT_TRUE(judge.has_gradients());
  judge.pass(StepState::kSuspect);
  EXPECT_EQ(judge.state(), StepState::kSuspect);
  judge.restart();
  EXPECT_EQ(judge.state(), StepState::kBegun);
  EXPECT_FALSE(judge.has_gradients());
}

TEST(StepJudge, is_amid_a_step_as_long_as_fewer_batches_have_come_than_in_both_before) {
  StepJudge judge;
  const auto batch = [&] {
    for (const StepState state : {StepState::kForward, StepState::kLoss, StepState::kBackward}) judge.pass(state);
    return judge.is_amid();
  };
  EXPECT_FALSE(batch()) << "how many are usual is not known";
  judge.end(StepEnding::kOptimizer);
  batch();
  batch();
  judge.end(StepEnding::kOptimizer);
  EXPECT_FALSE(batch()) << "the step before the last had one";
  EXPECT_FALSE(batch());
  judge.end(StepEnding::kOptimizer);
  EXPECT_TRUE(batch());
  EXPECT_FALSE(batch());
  judge.end(StepEnding::kNextForward);  // given up: it says nothing of what is usual
  EXPECT_TRUE(batch());
}

TEST(StepJudge, left_a_batch_out_where_it_called_more_models_for_each_backward_than_one_of_the_two_steps_before) {
  StepJudge judge;
  const auto step = [&](int models, int backwards) {
    for (int i = 0; i < models; ++i) judge.pass(StepState::kForward);
    for (int i = 0; i < backwards; ++i) {
      judge.pass(StepState::kLoss);
      judge.pass(StepState::kBackward);
    }
    const bool left_out = judge.left_batch_out();
    judge.end(StepEnding::kOptimizer);
    return left_out;
  };
  EXPECT_FALSE(step(4, 3)) << "how many are usual is not known";
  EXPECT_FALSE(step(4, 4));
  EXPECT_TRUE(step(4, 3));
  EXPECT_TRUE(step(8, 7)) << "the optimizer was left out as well, and came four batches later";
  EXPECT_FALSE(step(2, 2));
  EXPECT_FALSE(step(3, 3));
  EXPECT_FALSE(step(3, 3));
  EXPECT_FALSE(step(4, 0)) << "nothing was trained";
}

TEST(StepJudge, reads_gradients_once_and_again_where_they_may_have_been_written) {
  StepJudge judge;
  judge.pass(StepState::kForward);
  judge.pass(StepState::kLoss);
  EXPECT_EQ(judge.reads_gradients(0, false, false), Reads::kFirst);
  EXPECT_EQ(judge.reads_gradients(0, false, false), Reads::kNot);
  EXPECT_EQ(judge.reads_gradients(0, false, true), Reads::kAgain);
  EXPECT_EQ(judge.reads_gradients(0, true, false), Reads::kAgain);
  judge.note(0, TensorRole::kBoundaryGradient, "fc.weight");
  EXPECT_EQ(judge.reads_gradients(0, true, true), Reads::kNot) << "they are known to be bad";
  judge.pass(StepState::kLoss);
  EXPECT_EQ(judge.reads_gradients(0, false, false), Reads::kFirst) << "another backward has added to them";
}

TEST(StepJudge, multiplies_by_the_scale_until_unscaled_and_again_for_a_second_optimizer) {
  StepJudge judge;
  judge.pass(StepState::kForward);
  EXPECT_FALSE(judge.is_scaled());
  judge.pass(StepState::kScaled);
  EXPECT_TRUE(judge.is_scaled());
  judge.pass(StepState::kUnscaled);
  EXPECT_FALSE(judge.is_scaled());
  judge.pass(StepState::kOptimizer);
  judge.pass(StepState::kScaled);
  EXPECT_TRUE(judge.is_scaled());
  judge.end(StepEnding::kOptimizer);
  EXPECT_FALSE(judge.is_scaled());
}

TEST(StepJudge, takes_a_step_for_given_up_only_where_something_speaks_for_it) {
  StepJudge judge;
  EXPECT_EQ(judge.gives_up(), GivesUp::kNo) << "nothing has run";
  judge.pass(StepState::kForward);
  EXPECT_EQ(judge.gives_up(), GivesUp::kIfBadNumber);
  judge.pass(StepState::kLoss);
  judge.pass(StepState::kBackward);
  EXPECT_EQ(judge.gives_up(), GivesUp::kNo) << "gradients may be added up";
  judge.pass(StepState::kRaised);
  EXPECT_EQ(judge.gives_up(), GivesUp::kYes);
  judge.pass(StepState::kOptimizer);
  EXPECT_EQ(judge.gives_up(), GivesUp::kNo);
}

TEST(StepJudge, waits_for_as_many_models_as_the_last_step_called) {
  StepJudge judge;
  judge.pass(StepState::kForward);
  judge.pass(StepState::kForward);
  judge.end(StepEnding::kOptimizer);
  judge.pass(StepState::kForward);
  EXPECT_EQ(judge.gives_up(), GivesUp::kNo);
  judge.pass(StepState::kForward);
  EXPECT_EQ(judge.gives_up(), GivesUp::kIfBadNumber);
}

TEST(StepJudge, gives_what_came_after_the_last_boundary_to_the_next_step) {
  StepJudge judge;
  judge.note(0, TensorRole::kBoundaryGradient, "fc.weight");
  judge.pass_boundary(0);
  judge.note(0, TensorRole::kLoss, "the loss");
  judge.verdict(0).kept = true;
  judge.carry_over(0);
  EXPECT_EQ(judge.take(0, /*whole=*/false).bad, role_bit(TensorRole::kBoundaryGradient));
  EXPECT_TRUE(judge.verdict(1).kept);
  const StepVerdict next = judge.take(1, true);
  EXPECT_EQ(next.bad, role_bit(TensorRole::kLoss));
  EXPECT_EQ(next.first_bad, "the loss");
}

TEST(StepJudge, gives_a_bad_validation_to_the_step_that_it_came_in) {
  StepJudge judge;
  judge.pass_boundary(0);
  judge.note(0, TensorRole::kOutput, "what a model gave");
  judge.carry_over(0);
  EXPECT_EQ(judge.take(0, false).bad, role_bit(TensorRole::kOutput));
  EXPECT_EQ(judge.take(1, true).bad, 0u);
}

TEST(StepJudge, takes_the_first_of_a_streak_and_tells_once_that_none_is_left) {
  StepJudge judge({.max_triggers = 1, .distance = 1});
  judge.note(1, TensorRole::kLoss, "the loss");
  EXPECT_EQ(judge.judge(0, false), Consequence::kNothing);
  EXPECT_EQ(judge.judge(1, false), Consequence::kTaken);
  EXPECT_FALSE(judge.was_left_out());
  EXPECT_EQ(judge.judge(2, Harm::kHarm), Consequence::kSpent);
  EXPECT_TRUE(judge.was_left_out());
  EXPECT_FALSE(judge.was_left_out()) << "asked for";
  EXPECT_EQ(judge.judge(3, Harm::kHarm), Consequence::kNothing) << "the same streak";
  EXPECT_EQ(judge.judge(5, Harm::kHarm), Consequence::kSpent) << "another one";
  EXPECT_EQ(judge.taken(), 1u);
}

TEST(StepJudge, shows_the_first_healthy_step_and_a_few_more_where_parameters_are_narrow) {
  StepJudge wide, narrow;
  std::vector<std::uint32_t> shown, shown_narrow;
  for (std::uint32_t step = 0; step < 2000; ++step) {
    if (wide.end_held(step, false, false) == Fate::kShown) shown.push_back(step);
    if (narrow.end_held(step, false, true) == Fate::kShown) shown_narrow.push_back(step);
  }
  EXPECT_EQ(shown, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(shown_narrow, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7, 64, 128, 192, 256, 320, 384, 448, 512}));
}

TEST(StepJudge, keeps_a_few_steps_in_which_something_was_swallowed_and_never_two_in_a_row) {
  StepJudge judge;
  std::uint32_t kept = 0;
  bool last = false;
  for (std::uint32_t step = 0; step < 100; ++step) {
    const bool now = judge.keeps(step, /*left_bad=*/false, /*swallowed=*/true);
    EXPECT_FALSE(now && last);
    kept += now;
    last = now;
  }
  EXPECT_EQ(kept, 8u);
  EXPECT_FALSE(judge.keeps(200, false, false));
  EXPECT_TRUE(judge.keeps(201, /*left_bad=*/true, false));
}

TEST(StepJudge, forgets_steps_whose_rows_nobody_takes) {
  StepJudge judge;
  for (std::uint32_t step = 0; step < 1000; ++step) judge.note(step, TensorRole::kLoss, "the loss");
  EXPECT_EQ(judge.take(0, true).bad, 0u);
  EXPECT_EQ(judge.take(999, true).bad, role_bit(TensorRole::kLoss));
}

TEST(StepEndings, end_a_step_in_one_state_each) {
  EXPECT_EQ(ended_by(StepEnding::kOptimizer), StepState::kEnded);
  EXPECT_EQ(ended_by(StepEnding::kNextForward), StepState::kGivenUp);
  EXPECT_EQ(ended_by(StepEnding::kException), StepState::kException);
  EXPECT_EQ(ended_by(StepEnding::kExit), StepState::kExited);
  EXPECT_EQ(ended_by(StepEnding::kEnd), StepState::kExited);
  EXPECT_EQ(ended_by(StepEnding::kForward), StepState::kEnded);
}

}  // namespace
}  // namespace nanhunt::hunt
