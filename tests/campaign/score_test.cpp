// SPDX-License-Identifier: Apache-2.0
// What counts as right.
#include "tests/campaign/score.h"

#include <gtest/gtest.h>

namespace nanhunt::campaign {
namespace {

const Expected kExpected = {FindingClass::kOverflow, 3, Phase::kForward, "fc1", "addmm"};

std::optional<Finding> say(FindingClass cls, OpPlace place) {
  Finding out;
  out.cls = cls;
  out.place = std::move(place);
  return out;
}

TEST(Score, an_origin_is_right_only_with_step_phase_module_and_op) {
  const auto right = [](OpPlace place) {
    return origin_right(kExpected, say(FindingClass::kOverflow, std::move(place)));
  };
  EXPECT_TRUE(right({3, 0, Phase::kForward, "fc1", "addmm"}));
  EXPECT_FALSE(right({4, 0, Phase::kForward, "fc1", "addmm"}));
  EXPECT_FALSE(right({3, 0, Phase::kBackward, "fc1", "addmm"}));
  EXPECT_FALSE(right({3, 0, Phase::kForward, "fc2", "addmm"}));
  EXPECT_FALSE(right({3, 0, Phase::kForward, "fc1", "mm"}));
  EXPECT_FALSE(right({3, 0, Phase::kForward, std::nullopt, "addmm"}));
}

TEST(Score, what_is_not_scored_may_be_anything_and_an_empty_name_asks_for_none) {
  const Expected e = {FindingClass::kExploding, std::nullopt, std::nullopt, std::nullopt, ""};
  EXPECT_TRUE(origin_right(e, say(FindingClass::kExploding, {7, 0, Phase::kForward, "fc2", std::nullopt})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kExploding, {7, 0, Phase::kForward, "fc2", "addmm"})));
}

TEST(Score, class_and_origin_are_judged_apart) {
  const auto wrong_class = say(FindingClass::kInvalid, {3, 0, Phase::kForward, "fc1", "addmm"});
  EXPECT_TRUE(origin_right(kExpected, wrong_class));
  EXPECT_FALSE(class_right(kExpected, wrong_class));
}

TEST(Score, silence_is_never_right) {
  EXPECT_FALSE(origin_right(kExpected, std::nullopt));
  EXPECT_FALSE(class_right(kExpected, std::nullopt));
}

TEST(Score, the_headline_is_what_is_scored_and_information_is_no_answer) {
  Analysis analysis;
  Finding info, fault;
  info.id = "F1";
  info.severity = Severity::kInfo;
  fault.id = "F2";
  fault.cls = FindingClass::kInvalid;
  analysis.findings = {info, fault};
  analysis.verdict.origin = "F1";
  EXPECT_FALSE(headline_of(analysis));
  analysis.verdict.origin = "F2";
  EXPECT_EQ(headline_of(analysis)->cls, FindingClass::kInvalid);
}

}  // namespace
}  // namespace nanhunt::campaign
