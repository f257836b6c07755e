// SPDX-License-Identifier: Apache-2.0
// What is bad in a step becomes a harm and a row, the same for whoever watches it.
#include <gtest/gtest.h>

#include <string>

#include "src/hunt/step_verdict.h"

namespace nanhunt::hunt {
namespace {

TEST(StepVerdict, names_what_was_bad_first_and_counts_the_rest) {
  StepVerdict verdict;
  verdict.note(TensorRole::kLoss, "loss");
  verdict.note(TensorRole::kBoundaryGradient, "fc1.weight");
  EXPECT_EQ(verdict.first_bad, "loss");
  EXPECT_EQ(verdict.bad_tensors, 2u);
}

TEST(StepVerdict, takes_what_was_bad_before_the_step_for_the_cause_of_all_else) {
  StepVerdict verdict;
  verdict.note(TensorRole::kLoss, "loss");
  verdict.note_older(TensorRole::kBatch, "images");
  EXPECT_EQ(verdict.first_bad, "images");
  verdict.note_older(TensorRole::kState, "exp_avg");
  verdict.note_older(TensorRole::kBatch, "labels");
  EXPECT_EQ(verdict.first_bad, "exp_avg");
  EXPECT_EQ(verdict.bad_tensors, 4u);
}

TEST(StepVerdict, whose_batch_alone_is_bad_has_done_no_harm_yet) {
  StepVerdict verdict;
  EXPECT_EQ(verdict.harm(true), Harm::kNone);
  verdict.note(TensorRole::kBatch, "batch");
  EXPECT_EQ(verdict.harm(false), Harm::kNone);
}

TEST(StepVerdict, leaves_bad_gradients_to_a_scaler_that_skips_them) {
  StepVerdict verdict;
  verdict.note(TensorRole::kBoundaryGradient, "fc1.weight");
  EXPECT_EQ(verdict.harm(/*held_back=*/true), Harm::kScaled);
  EXPECT_EQ(verdict.harm(/*held_back=*/false), Harm::kHarm);
  // Its twins: gradients that no scale makes good again, and something else that is bad.
  StepVerdict kept = verdict;
  kept.kept = true;
  EXPECT_EQ(kept.harm(true), Harm::kHarm);
  StepVerdict loss = verdict;
  loss.note(TensorRole::kLoss, "loss");
  EXPECT_EQ(loss.harm(true), Harm::kHarm);
}

TEST(StepVerdict, becomes_a_row_of_health) {
  StepVerdict verdict;
  verdict.note(TensorRole::kState, "exp_avg");
  const HealthEvent health = verdict.health(7, 2, 3);
  EXPECT_EQ(health.step, 7u);
  EXPECT_EQ(health.bad, role_bit(TensorRole::kState));
  EXPECT_EQ(health.first_bad, "exp_avg");
  EXPECT_EQ(health.gradient_norm, 2);
  EXPECT_EQ(health.weight_checksum, 3u);
}

}  // namespace
}  // namespace nanhunt::hunt
