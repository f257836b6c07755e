// SPDX-License-Identifier: Apache-2.0
#include "reports/views/report_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reports/sample_analysis.h"

namespace nanhunt::reports {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_reports::make_clean_analysis;
using testing_reports::make_fault_analysis;

TEST(ReportModel, the_verdicts_finding_is_the_one_it_names) {
  Analysis analysis = make_fault_analysis();
  analysis.verdict.origin = "F2";
  EXPECT_EQ(make_report_model(analysis).origin->id, "F2");
  EXPECT_EQ(make_report_model(analysis).others.at(0).id, "F1");
}

TEST(ReportModel, a_fault_that_names_nothing_is_about_its_first_finding) {
  Analysis analysis = make_fault_analysis();
  analysis.verdict.origin.reset();
  EXPECT_EQ(make_report_model(analysis).origin->id, "F1");
}

TEST(ReportModel, a_clean_verdict_is_about_no_finding) {
  Analysis analysis = make_clean_analysis();
  analysis.findings.push_back({});
  const ReportModel model = make_report_model(analysis);
  EXPECT_FALSE(model.origin);
  EXPECT_EQ(model.others.size(), 1u);
}

TEST(ReportModel, a_static_scaler_is_called_so_once) {
  Analysis analysis;
  analysis.scaler.emplace();
  analysis.scaler->family = "static";
  analysis.scaler->dynamic = false;
  EXPECT_THAT(make_report_model(analysis).scaler->summary, StartsWith("static. Its scale is"));
  analysis.scaler->family = "torch.amp";
  analysis.scaler->dynamic = true;
  EXPECT_THAT(make_report_model(analysis).scaler->summary, StartsWith("torch.amp, dynamic. Its scale is"));
}

TEST(ReportModel, the_cure_is_what_was_seen_to_work) {
  const FindingView view = *make_report_model(make_fault_analysis()).origin;
  EXPECT_EQ(view.cure, "Keep fp32 master weights and optimizer state.");
  EXPECT_EQ(view.cure_badge, "seen to work on this run");
}

TEST(ReportModel, a_row_is_called_a_sample_only_where_that_is_known) {
  Analysis analysis = make_fault_analysis();
  ElementEvidence& element = *analysis.findings[0].element;
  element.flat_index = 2081;
  element.coords = {32, 1};
  element.row = 32;
  EXPECT_EQ(make_report_model(analysis).origin->element->where, "element 2,081, at [32, 1], row 32");
  element.row_is_sample = true;
  EXPECT_EQ(make_report_model(analysis).origin->element->where, "element 2,081, at [32, 1], sample 32 of the batch");
  element.sample_id = 1032;
  EXPECT_EQ(make_report_model(analysis).origin->element->where,
            "element 2,081, at [32, 1], sample 32 of the batch (id 1032 in the data set)");
}

TEST(ReportModel, of_clean_steps_says_what_was_watched_and_not_that_it_saw_no_operation) {
  Analysis analysis = make_clean_analysis();
  EXPECT_EQ(make_report_model(analysis).watched.size(), 3u);
  EXPECT_EQ(make_report_model(analysis).watched_how, "");
  analysis.ranks.at(0).info.level = "live";
  EXPECT_EQ(make_report_model(analysis).watched.at(1).label, "Operations of steps watched op by op");
  analysis.coverage.ops = analysis.coverage.values = 0;
  const ReportModel model = make_report_model(analysis);
  ASSERT_EQ(model.watched.size(), 1u);
  EXPECT_EQ(model.watched[0].label, "Steps");
  EXPECT_THAT(model.watched_how,
              StartsWith("Level live: the loss, the gradients and the loss scaler of every step"));
}

TEST(ReportModel, what_is_only_aftermath_is_not_called_a_happening) {
  Analysis analysis = make_fault_analysis();
  Finding& f = analysis.findings[0];
  f.occurrence_count = 1;
  f.first_step = f.last_step = 3;
  f.bad_steps = {.count = 1, .anew = 1, .unwatched = 0, .first = 3, .last = 3};
  EXPECT_EQ(make_report_model(analysis).origin->how_often, "");
  f.bad_steps = {.count = 58, .anew = 1, .unwatched = 0, .first = 3, .last = 60};
  const FindingView once = *make_report_model(analysis).origin;
  EXPECT_EQ(once.how_often, "it began in step 3");
  EXPECT_EQ(once.bad_steps,
            "58 bad steps, from step 3 to step 60 (57 as its aftermath)");
  f.bad_steps.unwatched = 40;
  EXPECT_EQ(make_report_model(analysis).origin->bad_steps,
            "58 bad steps, from step 3 to step 60 (17 as its aftermath, 40 not watched op by op)");
  f.occurrence_count = 58;
  f.last_step = 60;
  f.bad_steps = {.count = 58, .anew = 58, .unwatched = 0, .first = 3, .last = 60};
  const FindingView always = *make_report_model(analysis).origin;
  EXPECT_EQ(always.how_often, "58 bad steps, from step 3 to step 60");
  EXPECT_EQ(always.bad_steps, "");
  f.cls = FindingClass::kScalerCalibration;
  EXPECT_EQ(make_report_model(analysis).origin->how_often, "in 58 steps that the scaler skipped, from step 3 to step 60");
  f.cls = FindingClass::kUnderflow;  // no step is bad of it
  f.bad_steps = {};
  EXPECT_EQ(make_report_model(analysis).origin->how_often, "in 58 steps, from step 3 to step 60");
}

TEST(ReportModel, an_untried_cure_is_called_untried) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].advice.erase(analysis.findings[0].advice.begin());
  const FindingView view = *make_report_model(analysis).origin;
  EXPECT_EQ(view.cure, "Train in bf16.");
  EXPECT_EQ(view.cure_badge, "not tried");
}

TEST(ReportModel, a_cure_that_was_finite_on_the_numbers_says_so) {
  Analysis analysis = make_fault_analysis();
  std::vector<Advice>& advice = analysis.findings[0].advice;
  const std::string untried = advice[1].text;
  advice[0] = {"clamp-input", "Clamp it.", "", std::nullopt, "tried on these numbers: finite", true};
  advice.push_back({"bf16", "Leave it.", "", std::nullopt, "tried on these numbers: not finite", false});
  const FindingView view = *make_report_model(analysis).origin;
  EXPECT_EQ(view.cure, "Clamp it.");
  EXPECT_EQ(view.cure_badge, "finite on these numbers, not tried in a run");
  EXPECT_EQ(view.advice.at(1).text, untried);
  EXPECT_EQ(view.advice.at(3).badge, "tried: no cure");
}

TEST(ReportModel, fixes_that_all_failed_are_not_sold_as_a_cure) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].advice.erase(analysis.findings[0].advice.begin(), analysis.findings[0].advice.end() - 1);
  const FindingView view = *make_report_model(analysis).origin;
  EXPECT_EQ(view.cure, "nothing that was tried helped");
  EXPECT_TRUE(view.cure_badge.empty());
}

TEST(ReportModel, whether_it_matters_follows_severity_and_sinks) {
  Finding finding = make_fault_analysis().findings[0];
  EXPECT_EQ(matter_sentence(finding),
            "Yes. The weights hold NaN from step 0 to step 39. Bad numbers reached parameter fc1.weight, parameter fc1.bias, loss.");
  Finding mended = finding;
  mended.bad_steps.count = 2;
  EXPECT_THAT(matter_sentence(mended), StartsWith("Yes. The weights held NaN after step 0. "));
  Finding validated = finding;
  validated.place.phase = Phase::kValidation;
  validated.unfinished = true;
  EXPECT_EQ(matter_sentence(validated),
            "Only where the result of the validation is used: a schedule of the learning rate, the choice of a checkpoint. "
            "Training itself was not harmed.");
  Finding swallowed = finding;
  swallowed.sinks.clear();
  swallowed.first_step = 6;
  ChainNode origin, end;
  end.op = "div";
  end.module = "norm";
  end.lifecycle = Lifecycle::kDisappear;
  swallowed.chain.nodes = {origin, end};
  EXPECT_EQ(
      matter_sentence(swallowed),
      "Yes. No NaN reached training, but div in norm gives only zeros or one number from step 6 on: what it feeds "
      "learns nothing.");
  finding.severity = Severity::kWarning;
  EXPECT_THAT(matter_sentence(finding), StartsWith("It may."));
  finding.benign = true;
  EXPECT_THAT(matter_sentence(finding), StartsWith("No."));
}

TEST(ReportModel, a_result_that_is_also_the_tensor_is_shown_once) {
  const FindingView view = *make_report_model(make_fault_analysis()).origin;
  ASSERT_EQ(view.tensors.size(), 4u);
  EXPECT_EQ(view.tensors.back().part, "output out");
  EXPECT_TRUE(view.tensors.back().bad);
  EXPECT_EQ(view.tensors[2].use, "overwritten");
}

TEST(ReportModel, guard_constants_that_do_not_guard_come_first) {
  Analysis analysis = make_fault_analysis();
  std::swap(analysis.eps_audit[0], analysis.eps_audit[1]);
  const ReportModel model = make_report_model(analysis);
  EXPECT_EQ(model.eps_audit[0].verdict, "zero");
  EXPECT_EQ(model.eps_audit[0].eps, "1e-8");
}

TEST(ReportModel, sinks_are_named_without_brackets) {
  const FindingView view = *make_report_model(make_fault_analysis()).origin;
  EXPECT_EQ(view.chain.steps[1].title, "parameter");
  EXPECT_EQ(view.chain.steps[1].badge, "harmed");
  EXPECT_EQ(view.chain.steps[1].amount, "NaN in 1,984 of 8,192 (24 %)");
}

TEST(ReportModel, every_class_has_words) {
  for (int c = 0; c <= static_cast<int>(FindingClass::kUnexplained); ++c) {
    const auto cls = static_cast<FindingClass>(c);
    EXPECT_FALSE(class_phrase(cls).empty()) << c;
    EXPECT_TRUE(class_explanation(cls).ends_with('.')) << c;
  }
}

}  // namespace
}  // namespace nanhunt::reports
