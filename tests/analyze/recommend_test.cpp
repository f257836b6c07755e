// SPDX-License-Identifier: Apache-2.0
// The smallest set of changes: what was seen to work first, one change for several findings, nothing that was
// disproved.
#include "src/analyze/findings/recommend.h"

#include <gtest/gtest.h>

#include "src/analyze/wording/advice.h"

namespace nanhunt::analyze {
namespace {

Advice advice(const std::string& id, std::optional<bool> verified = std::nullopt) {
  return {id, "do " + id, "", verified, ""};
}

Finding finding(const std::string& id, std::vector<Advice> list, Severity severity = Severity::kFault,
                std::uint32_t step = 0) {
  Finding f;
  f.id = id;
  f.severity = severity;
  f.advice = std::move(list);
  f.first_step = f.last_step = f.place.step = step;
  f.bad_elements = severity == Severity::kFault ? 1 : 0;
  return f;
}

ExperimentRecord worked(const std::string& fix, std::uint32_t step) {
  ExperimentRecord e;
  e.fix = fix;
  e.step = step;
  e.finite = e.verified = true;
  e.further_steps = 50;
  return e;
}

std::string told(const Recommendations& r) {
  std::string out;
  for (const Recommendation& change : r.changes) {
    out += change.advice.id + " for";
    for (const std::string& id : change.findings) out += " " + id;
    out += "; ";
  }
  for (const std::string& id : r.unanswered) out += "nothing for " + id + "; ";
  return out;
}

TEST(Recommend, prefers_what_was_seen_to_work) {
  Analysis a;
  a.findings = {finding("F1", {advice("a"), advice("b", true), advice("c", false)})};
  const Recommendations r = recommend(a);
  EXPECT_EQ(told(r), "b for F1; ");
  ASSERT_EQ(r.rejected.size(), 1u);
  EXPECT_EQ(r.rejected[0].advice.id, "c");
}

TEST(Recommend, takes_the_form_that_is_known_before_a_limit_that_was_tried_as_the_report_does) {
  Advice limit = advice("clamp-input");
  limit.on_these_numbers = true;
  for (const std::string first : {"log-softmax", "with-logits", "stay-in-logarithms"}) {
    std::vector<Advice> list = {advice(first), limit};
    put_tried_first(list);
    EXPECT_EQ(list.front().id, first);
    Analysis a;
    a.findings = {finding("F1", list)};
    EXPECT_EQ(told(recommend(a)), first + " for F1; ");
  }
  Analysis failed;
  failed.findings = {finding("F1", {advice("log-softmax", false), limit})};
  put_tried_first(failed.findings[0].advice);
  EXPECT_EQ(failed.findings[0].advice.front().id, "clamp-input");
  EXPECT_EQ(told(recommend(failed)), "clamp-input for F1; ");
}

TEST(Recommend, takes_one_change_where_one_answers_all) {
  Analysis a;
  a.findings = {finding("F1", {advice("a"), advice("b")}), finding("F2", {advice("c"), advice("b")})};
  EXPECT_EQ(told(recommend(a)), "b for F1 F2; ");
  a.findings.push_back(finding("F3", {advice("d")}));
  EXPECT_EQ(told(recommend(a)), "b for F1 F2; d for F3; ");
}

TEST(Recommend, lets_a_fix_that_kept_all_finite_answer_the_faults_of_those_steps) {
  Analysis a;
  a.findings = {finding("F1", {advice("a", true)}, Severity::kFault, 3),
                finding("F2", {advice("x")}, Severity::kFault, 50), finding("F3", {advice("y")}, Severity::kFault, 54),
                finding("F4", {advice("z")}, Severity::kWarning, 4)};
  a.experiments = {worked("a", 3)};
  EXPECT_EQ(told(recommend(a)), "a for F1 F2; y for F3; z for F4; ");
}

TEST(Recommend, does_not_offer_again_what_was_tried_in_vain) {
  Analysis a;
  a.findings = {finding("F1", {advice("a", false), advice("b", false)})};
  EXPECT_EQ(told(recommend(a)), "nothing for F1; ");
}

TEST(Recommend, asks_for_nothing_where_nothing_is_wrong) {
  Analysis a;
  a.findings = {finding("F1", {advice("init-scale")}, Severity::kInfo)};
  const Recommendations r = recommend(a);
  EXPECT_EQ(told(r), "");
  ASSERT_EQ(r.optional.size(), 1u);
  EXPECT_EQ(r.optional[0].advice.id, "init-scale");
  EXPECT_EQ(told(recommend(Analysis{})), "");
}

TEST(Recommend, notes_layers_that_came_near_the_end_of_their_format) {
  Analysis a;
  LayerSummary near, far, failed;
  near.module = "fc2";
  near.dtype = far.dtype = failed.dtype = DType::kF16;
  near.headroom_forward = 0.4;
  near.headroom_gradient = far.headroom_forward = far.headroom_gradient = 5;
  failed.headroom_forward = failed.headroom_gradient = 0;
  failed.bad_ops = 1;
  a.layers = {near, far, failed};
  EXPECT_EQ(
      recommend(a).notes,
      std::vector<std::string>{"fc2 came within 0.4 binades of the largest fp16 number and has not passed it yet."});
}

}  // namespace
}  // namespace nanhunt::analyze
