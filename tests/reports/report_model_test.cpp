// SPDX-License-Identifier: Apache-2.0
#include "reports/report_model.h"

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

TEST(ReportModel, an_untried_cure_is_called_untried) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].advice.pop_back();
  const FindingView view = *make_report_model(analysis).origin;
  EXPECT_EQ(view.cure, "Train in bf16.");
  EXPECT_EQ(view.cure_badge, "not tried");
}

TEST(ReportModel, fixes_that_all_failed_are_not_sold_as_a_cure) {
  Analysis analysis = make_fault_analysis();
  analysis.findings[0].advice.resize(1);
  const FindingView view = *make_report_model(analysis).origin;
  EXPECT_EQ(view.cure, "nothing that was tried helped");
  EXPECT_TRUE(view.cure_badge.empty());
}

TEST(ReportModel, whether_it_matters_follows_severity_and_sinks) {
  Finding finding = make_fault_analysis().findings[0];
  EXPECT_EQ(matter_sentence(finding), "Yes. Bad numbers reached parameter fc1.weight, parameter fc1.bias, loss.");
  Finding swallowed = finding;
  swallowed.sinks.clear();
  swallowed.first_step = 6;
  ChainNode origin, end;
  end.op = "div";
  end.module = "norm";
  end.lifecycle = Lifecycle::kDisappear;
  swallowed.chain.nodes = {origin, end};
  EXPECT_EQ(matter_sentence(swallowed),
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
  EXPECT_EQ(view.chain.steps[1].badge, "sink");
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
