// SPDX-License-Identifier: Apache-2.0
// The scorer: what counts as right, and the rules of other tools on rows that were written by hand.
#include "tests/campaign/score.h"

#include <gtest/gtest.h>

#include "tests/campaign/baselines/baselines.h"
#include "tests/campaign/campaign.h"
#include "tests/campaign/runner.h"

namespace nanhunt::campaign {
namespace {

Expected overflow_in_fc1() {
  Expected out;
  out.cls = FindingClass::kOverflow;
  out.place = {3, Phase::kForward, "fc1", "addmm"};
  return out;
}

Answer say(FindingClass cls, Place place) {
  Answer out;
  out.given = out.fault = true;
  out.cls = cls;
  out.place = std::move(place);
  return out;
}

TEST(Score, an_origin_is_right_only_with_step_phase_module_and_op) {
  const Expected e = overflow_in_fc1();
  EXPECT_TRUE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, "fc1", "addmm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {4, Phase::kForward, "fc1", "addmm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kBackward, "fc1", "addmm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, "fc2", "addmm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, "fc1", "mm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, {}, "addmm"})));
}

TEST(Score, class_and_origin_are_judged_apart) {
  const Expected e = overflow_in_fc1();
  const Answer wrong_class = say(FindingClass::kInvalid, {3, Phase::kForward, "fc1", "addmm"});
  EXPECT_TRUE(origin_right(e, wrong_class));
  EXPECT_FALSE(class_right(e, wrong_class));
}

TEST(Score, silence_is_never_right) {
  EXPECT_FALSE(origin_right(overflow_in_fc1(), Answer()));
  EXPECT_FALSE(class_right(overflow_in_fc1(), Answer()));
}

TEST(Score, one_of_several_modules_will_do_where_the_plan_says_so) {
  Expected e = overflow_in_fc1();
  e.modules = {"fc1", "fc2"};
  EXPECT_TRUE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, "fc2", "addmm"})));
  EXPECT_FALSE(origin_right(e, say(FindingClass::kOverflow, {3, Phase::kForward, "fc3", "addmm"})));
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
  EXPECT_FALSE(answer_of(analysis).given);
  analysis.verdict.origin = "F2";
  EXPECT_EQ(answer_of(analysis).cls, FindingClass::kInvalid);
  EXPECT_TRUE(answer_of(analysis).fault);
}

// A NaN that came in with the batch, an Inf of its own in fc2, and what backward made of both.
std::vector<SeenOp> rows() {
  return {
      {.step = 0, .phase = Phase::kForward, .module = "fc1", .op = "addmm"},
      {.step = 1, .phase = Phase::kForward, .module = "fc1", .op = "t", .bad_in = true},
      {.step = 1, .phase = Phase::kForward, .module = "fc1", .op = "addmm", .bad_in = true, .bad_out = true,
          .nan_out = true},
      {.step = 1, .phase = Phase::kForward, .module = "fc2", .op = "exp", .bad_out = true},
      {.step = 1, .phase = Phase::kBackward, .module = "fc2", .op = "exp_backward", .bad_in = true, .bad_out = true},
      {.step = 1, .phase = Phase::kBackward, .module = "fc2", .op = "mul_backward", .bad_in = true, .bad_out = true,
          .nan_out = true},
  };
}

TEST(Baselines, each_rule_names_what_it_would) {
  const std::vector<SeenOp> ops = rows();
  EXPECT_EQ(kFirstBadOp.find(ops)->op, "t");
  EXPECT_EQ(kFirstBadOutput.find(ops)->op, "addmm");
  EXPECT_EQ(kCleanInBadOut.find(ops)->op, "exp");
  EXPECT_EQ(kAnomalyMode.find(ops)->op, "mul_backward");
  EXPECT_EQ(kFirstBadModule.find(ops)->module, "fc1");
  EXPECT_EQ(kFirstBadModule.find(ops)->op, std::nullopt);
}

TEST(Baselines, none_names_anything_in_a_clean_run) {
  const std::vector<SeenOp> clean = {rows().front()};
  for (const Baseline* baseline : all_baselines()) EXPECT_FALSE(baseline->find(clean).has_value()) << baseline->name;
}

TEST(Baselines, a_rule_that_names_modules_is_not_asked_for_ops) {
  EXPECT_TRUE(baseline_right(kFirstBadModule, overflow_in_fc1(), Place{3, Phase::kForward, "fc1", std::nullopt}));
  EXPECT_FALSE(baseline_right(kFirstBadOp, overflow_in_fc1(), Place{3, Phase::kForward, "fc1", "t"}));
  EXPECT_FALSE(baseline_right(kFirstBadModule, overflow_in_fc1(), std::nullopt));
}

TEST(Summary, counts_faults_and_lists_misses_with_how_to_run_them_again) {
  RunResult right, wrong, healthy, alarm;
  right.id = {.campaign_seed = 5, .healthy = false, .index = 0};
  right.family = wrong.family = "domain-error";
  LevelResult level;
  level.level = "ops";
  level.origin_right = level.class_right = true;
  right.levels = {level};
  wrong.id = {.campaign_seed = 5, .healthy = false, .index = 1};
  level.class_right = false;
  wrong.levels = {level};
  healthy.id = {.campaign_seed = 5, .healthy = true, .index = 0};
  level.class_right = true;
  healthy.levels = {level};
  alarm.id = {.campaign_seed = 5, .healthy = true, .index = 1};
  level.origin_right = level.class_right = false;
  alarm.levels = {level};
  const nlohmann::json s = summarize({to_json(right), to_json(wrong), to_json(healthy), to_json(alarm)}, 5);
  EXPECT_EQ(s["faults"], 2);
  EXPECT_EQ(s["healthy"], 2);
  EXPECT_EQ(s["origin_right"], 2);
  EXPECT_EQ(s["class_right"], 1);
  EXPECT_EQ(s["false_faults"], 1);
  ASSERT_EQ(s["misses"].size(), 2u);
  EXPECT_EQ(s["misses"][0]["again"], "tools/campaign --seed 5 --only fault-0001");
}

TEST(RunIds, read_what_they_write_and_refuse_the_rest) {
  EXPECT_EQ(parse_run_id("fault-0017", 3).text(), "fault-0017");
  EXPECT_TRUE(parse_run_id("healthy-2", 3).healthy);
  for (const char* bad : {"", "fault", "fault-", "fault-x", "fault-1x", "other-1"}) {
    EXPECT_THROW(parse_run_id(bad, 3), std::invalid_argument) << bad;
  }
}

}  // namespace
}  // namespace nanhunt::campaign
