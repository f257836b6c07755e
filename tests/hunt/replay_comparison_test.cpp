// SPDX-License-Identifier: Apache-2.0
#include "src/hunt/replay_comparison.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanhunt::hunt {
namespace {

const std::vector<StepFact> kBadStep = {{TensorRole::kLoss, "the loss", false, 1},
                                        {TensorRole::kBoundaryGradient, "fc1.weight", false, 2},
                                        {TensorRole::kBoundaryGradient, "fc1.bias", true, 3}};

TEST(ReplayComparison, the_same_bits_are_reproduced_and_what_was_compared_is_said) {
  std::vector<StepFact> replay = kBadStep;
  replay.push_back({TensorRole::kParameter, "fc1.weight", false, 9});  // not known of the step: not compared
  const ReplayComparison out = compare_replay(kBadStep, replay);
  EXPECT_EQ(out.result, ReplayResult::kReproduced);
  EXPECT_EQ(out.text, "The replay gave the same bits as the step: the loss and 2 gradients at the optimizer boundary.");
}

TEST(ReplayComparison, a_replay_in_which_nothing_is_bad_is_clean) {
  const std::vector<StepFact> replay = {{TensorRole::kLoss, "the loss", true, 7},
                                        {TensorRole::kBoundaryGradient, "fc1.weight", true, 8},
                                        {TensorRole::kBoundaryGradient, "fc1.bias", true, 3}};
  const ReplayComparison out = compare_replay(kBadStep, replay);
  EXPECT_EQ(out.result, ReplayResult::kClean);
  EXPECT_EQ(out.text,
            "Compared: the loss and 2 gradients at the optimizer boundary. 2 differ; the loss was not finite and is finite in the "
            "replay. Nothing became bad in the replay.");
}

TEST(ReplayComparison, bad_in_another_way_differs) {
  std::vector<StepFact> replay = kBadStep;
  replay[1].checksum = 5;
  const ReplayComparison out = compare_replay(kBadStep, replay);
  EXPECT_EQ(out.result, ReplayResult::kDiffers);
  EXPECT_NE(out.text.find("1 differs; the gradient of fc1.weight is not finite in both, with other bits."),
            std::string::npos)
      << out.text;
}

TEST(ReplayComparison, a_step_that_was_never_bad_differs_where_bits_do) {
  EXPECT_EQ(compare_replay({{TensorRole::kLoss, "the loss", true, 1}}, {{TensorRole::kLoss, "the loss", true, 2}}).result,
            ReplayResult::kDiffers);
}

TEST(ReplayComparison, what_did_not_come_about_differs) {
  const ReplayComparison out = compare_replay(kBadStep, {kBadStep[0], kBadStep[1]});
  EXPECT_EQ(out.result, ReplayResult::kDiffers);
  EXPECT_NE(out.text.find("the gradient of fc1.bias did not come about"), std::string::npos) << out.text;
}

}  // namespace
}  // namespace nanhunt::hunt
