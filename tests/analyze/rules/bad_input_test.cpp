// SPDX-License-Identifier: Apache-2.0
// What the loss or an evaluation is given beside what the model made: labels, weights, noise levels, and parameters
// that they read themselves.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

TEST(BadInput, is_what_a_loss_or_an_evaluation_reads_first_and_no_operation_made_but_not_what_a_module_reads_so) {
  for (const Phase phase : {Phase::kLoss, Phase::kValidation, Phase::kForward}) {
    TraceBuilder t;
    const Handle label = t.value(finite(16).nan(1));
    const Handle y = t.in("", phase).op("mul", {{"self", label}}, finite(16).nan(1), {{"other", 2}});
    t.mark(TensorRole::kLoss, "loss", y);
    const std::string phase_text(phase_name(phase));
    const std::string told = phase != Phase::kForward
                                 ? "bad_input | <batch> | - | " + phase_text + " | step 0 | unknown | inferred\n"
                                 : "unexplained | <unwatched> | - | forward | step 0 | unknown | inferred\n";
    const Analysis a = analysis_of(t);
    EXPECT_EQ(table(a), told);
    if (phase != Phase::kForward) {
      ASSERT_EQ(a.findings[0].advice.size(), 2U);
      EXPECT_EQ(a.findings[0].advice[0].id, "record-ops");
      EXPECT_EQ(a.findings[0].advice[1].id, "drop-bad-samples");
    }
  }
}

TEST(BadInput, sends_to_the_samples_first_where_a_row_is_known_to_be_one_and_else_to_how_the_program_made_it) {
  for (const bool known : {true, false}) {
    TraceBuilder t;
    if (known) t.samples({11, 12, 13, 14});
    const Handle weight = t.value(finite().shape({4}).inf(1).first_at(3));
    const Handle y = t.in("", Phase::kLoss).op("mul", {{"self", weight}}, finite(4).inf(1), {{"other", 2}});
    t.mark(TensorRole::kLoss, "loss", y);
    t.end_step();
    const Analysis a = analysis_of(t);
    ASSERT_FALSE(a.findings.empty());
    EXPECT_EQ(a.findings[0].advice.at(0).id, known ? "drop-bad-samples" : "record-ops");
  }
}

TEST(BadInput, and_bad_parameters_are_told_as_possibly_made_before_the_first_step) {
  for (const TensorRole role : {TensorRole::kBatch, TensorRole::kParameter}) {
    for (const std::int64_t bad : {1, 0}) {
      TraceBuilder t;
      const Handle given = t.value(finite(16).nan(bad));
      t.mark(role, "given", given);
      const Handle y = t.in("fc").op("mul", {{"self", given}}, finite(16).nan(bad), {{"other", 2}});
      t.mark(TensorRole::kLoss, "loss", y);
      t.end_step();
      const Analysis a = analysis_of(t);
      ASSERT_EQ(a.findings.size(), static_cast<std::size_t>(bad));
      if (bad == 0) continue;
      EXPECT_NE(a.findings[0].explanation.find("before the first step"), std::string::npos);
      EXPECT_NE(a.findings[0].explanation.find("any op that was watched"), std::string::npos);
    }
  }
}

TEST(BadInput, is_not_a_parameter_that_the_loss_reads_first_and_an_optimizer_steps) {
  TraceBuilder t;
  Handle w = t.value(finite(16).nan(1));
  const Handle y = t.in("", Phase::kLoss).op("mul", {{"self", w}}, finite(16).nan(1), {{"other", 2}});
  t.mark(TensorRole::kLoss, "loss", y);
  t.in("", Phase::kOptimizer).in_place("add_", w, {{"other", y}}, finite(16).nan(1));
  t.mark(TensorRole::kParameter, "fc1.weight", w);
  t.end_step();
  EXPECT_EQ(table(analysis_of(t)), "bad_state | <state> | fc1.weight | data | step 0 | unknown | observed\n");
}

}  // namespace
}  // namespace nanhunt
