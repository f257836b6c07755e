// SPDX-License-Identifier: Apache-2.0
// What is advised where operations that an explanation needs are not in the trace: never level ops where it cannot help.
#include "src/analyze/findings/ops_in_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::Not;

const std::string kReason = "there is no C++ compiler to build it with: install g++ (Debian: apt install g++), or set CXX";

Analysis analysis_at(const std::string& level, const TraceBuilder& trace, std::uint64_t chunks_lost = 0) {
  const auto analyzer = Analyzer::make({});
  for (const RecordBatch& batch : trace.batches()) analyzer->add(batch);
  RunInfo info;
  info.level = level;
  TraceHealth health;
  health.clean_end = true;
  health.chunks_lost = chunks_lost;
  return analyzer->finish(info, health);
}

// The loss of step 1 is bad, and no operation is in the trace.
TraceBuilder bad_step(const std::string& why_no_tap, bool bad = true) {
  TraceBuilder t;
  if (!why_no_tap.empty()) t.note("operations: the tap is missing, because " + why_no_tap, 1);
  t.health();
  t.end_step();
  if (bad) {
    t.unheard("The step was not heard: operations cannot be watched here.");
    t.health(role_bit(TensorRole::kLoss), "loss");
    t.end_step(std::nan(""));
  }
  return t;
}

// Everything that a report says of it.
std::string words_of(const Analysis& a) {
  std::string text;
  for (const Finding& f : a.findings) {
    text += f.title + "\n" + f.explanation + "\n";
    for (const std::string& line : f.evidence) text += line + "\n";
    for (const Advice& advice : f.advice) text += advice.id + ": " + advice.text + " " + advice.why + "\n";
  }
  for (const std::string& line : a.coverage.unwatched) text += line + "\n";
  return text;
}

bool proposes_level_ops(const Analysis& a) {
  const std::string text = words_of(a);
  return text.find("--level ops") != std::string::npos || text.find("evel ops sees") != std::string::npos ||
         text.find("Level ops") != std::string::npos;
}

TEST(OpsInTrace, without_a_tap_the_advice_is_what_makes_it_available_at_any_level) {
  for (const char* level : {"steps", "ops"}) {
    const Analysis a = analysis_at(level, bad_step(kReason));
    ASSERT_EQ(a.findings.size(), 1u);
    ASSERT_EQ(a.findings[0].advice.size(), 1u);
    EXPECT_EQ(a.findings[0].advice[0].id, "get-tap");
    EXPECT_EQ(a.findings[0].advice[0].text,
              "Get the tap, which hears the operations of PyTorch, and train again. It was missing, because " + kReason +
                  ".");
    EXPECT_FALSE(proposes_level_ops(a)) << words_of(a);
    // its twins: with a tap the level helps, where it is not the run's already
    const Analysis twin = analysis_at(level, bad_step(""));
    EXPECT_EQ(twin.findings.at(0).advice.at(0).id, std::string(level) == "ops" ? "look-beyond-ops" : "record-ops");
    EXPECT_EQ(twin.findings[0].advice.size(), 1u);
    EXPECT_EQ(proposes_level_ops(twin), std::string(level) != "ops");
    EXPECT_THAT(words_of(twin), Not(HasSubstr("tap")));
  }
}

TEST(OpsInTrace, a_run_without_a_tap_that_stays_finite_is_clean_and_no_level_is_proposed) {
  for (const char* level : {"steps", "ops"}) {
    const Analysis a = analysis_at(level, bad_step(kReason, false));
    EXPECT_EQ(table(a), "clean\n");
    EXPECT_FALSE(proposes_level_ops(a)) << words_of(a);
    EXPECT_THAT(a.coverage.unwatched, Contains(HasSubstr("the tap is missing, because " + kReason)));
  }
  const Analysis twin = analysis_at("steps", bad_step("", false));
  EXPECT_EQ(table(twin), "clean\n");
  EXPECT_TRUE(proposes_level_ops(twin));
  EXPECT_FALSE(proposes_level_ops(analysis_at("ops", bad_step("", false))));
}

TEST(OpsInTrace, a_damaged_trace_lost_no_operations_where_there_was_no_tap) {
  const Analysis a = analysis_at("steps", bad_step(kReason), 1);
  EXPECT_EQ(a.findings.at(0).advice.at(0).id, "get-tap");
  EXPECT_THAT(a.findings[0].evidence, Not(Contains(HasSubstr("damaged"))));
  for (const char* level : {"steps", "ops"}) {
    const Analysis twin = analysis_at(level, bad_step(""), 1);
    EXPECT_EQ(twin.findings.at(0).advice.at(0).id, "record-again");
    EXPECT_THAT(twin.findings[0].evidence, Contains(HasSubstr("The trace is damaged")));
  }
}

TEST(OpsInTrace, what_no_operation_of_a_damaged_trace_made_may_be_made_by_one_that_was_lost) {
  for (const TensorRole role : {TensorRole::kState, TensorRole::kBatch}) {
    TraceBuilder t;
    const Handle x = t.value(finite().nan(1));
    t.mark(role, "x", x);
    const Handle y = t.op("mul", {{"self", x}}, finite().nan(1));
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    const Analysis damaged = analysis_at("ops", t, 1), whole = analysis_at("ops", t);
    ASSERT_EQ(damaged.findings.size(), 1u);
    EXPECT_EQ(damaged.findings[0].confidence, Confidence::kInferred);
    EXPECT_EQ(damaged.findings[0].advice.at(0).id, "record-again");
    EXPECT_THAT(damaged.findings[0].explanation, StartsWith("The trace is damaged: the operation that made this may be"));
    // its twin: nothing was lost
    EXPECT_EQ(whole.findings.at(0).confidence, Confidence::kObserved);
    EXPECT_NE(whole.findings[0].advice.at(0).id, "record-again");
    EXPECT_THAT(words_of(whole), Not(HasSubstr("damaged")));
  }
}

TEST(OpsInTrace, other_advice_stays_beside_it) {
  TraceBuilder t = bad_step("PyTorch 2.4 or newer is needed, this is 2.3.1", false);
  const Handle label = t.value(finite(16).nan(1));
  const Handle y = t.in("", Phase::kLoss).op("mul", {{"self", label}}, finite(16).nan(1), {{"other", 2}});
  t.mark(TensorRole::kLoss, "loss", y);
  const Analysis a = analysis_at("ops", t);
  ASSERT_EQ(a.findings.at(0).advice.size(), 2u);
  EXPECT_EQ(a.findings[0].advice[1].id, "drop-bad-samples");
  EXPECT_EQ(a.findings[0].advice[0].id, "get-tap");
  EXPECT_THAT(a.findings[0].advice[0].text,
              HasSubstr("because PyTorch 2.4 or newer is needed, this is 2.3.1. Install PyTorch 2.4 or newer."));
}

TEST(OpsInTrace, that_a_step_was_not_heard_is_not_said_twice) {
  EXPECT_EQ(analysis_at("steps", bad_step(kReason)).findings.at(0).explanation,
            "Its numbers show it, and its operations were not heard: operations cannot be watched here.");
}

TEST(OpsInTrace, what_to_do_follows_from_the_reason) {
  using analyze::tap_todo;
  EXPECT_EQ(tap_todo("PyTorch 2.4 or newer is needed, this is 2.3.1"), "Install PyTorch 2.4 or newer.");
  EXPECT_EQ(tap_todo(kReason), "");  // it says it itself
  EXPECT_THAT(tap_todo("c++ could not compile it for PyTorch 2.20.0: error: no"), HasSubstr("CXX"));
  EXPECT_THAT(tap_todo("this PyTorch has no C++ headers in /x/include"), HasSubstr("wheel"));
  EXPECT_THAT(tap_todo("another library holds PyTorch's dispatch key Fake: no"), HasSubstr("without the library"));
  EXPECT_EQ(tap_todo("there is no memory for it"), "");
  TraceBuilder t = bad_step("there is no memory for it");
  EXPECT_THAT(analysis_at("steps", t).findings.at(0).advice.at(0).text, HasSubstr("doctor --env"));
}

TEST(OpsInTrace, only_its_own_note_says_that_the_tap_is_missing) {
  EXPECT_EQ(analyze::why_no_tap("kernels: not watched, because the tap is missing"), "");
  EXPECT_EQ(analyze::why_no_tap("operations of steps that the budget had no room for"), "");
  EXPECT_EQ(analyze::why_no_tap("operations: the tap is missing, because it is"), "it is");
  EXPECT_NE(analyze::why_no_tap("operations: the tap is missing, because "), "");
}

}  // namespace
}  // namespace nanhunt
