// SPDX-License-Identifier: Apache-2.0
// What the loss or an evaluation is given beside what the model made: labels, weights, noise levels, and parameters
// that they read themselves.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/trace_builder.h"

namespace nanhunt {
namespace {

using namespace testing_support;

TEST(BadInput, is_what_a_loss_or_an_evaluation_reads_first_and_no_operation_made_but_not_what_a_module_reads_so) {
  for (const Phase phase : {Phase::kLoss, Phase::kValidation, Phase::kForward}) {
    TraceBuilder t;
    const Handle label = t.value(finite(16).nan(1));
    const Handle y = t.in("", phase).op("mul", {{"self", label}}, finite(16).nan(1), {{"other", 2}});
    t.mark(phase == Phase::kValidation ? TensorRole::kOutput : TensorRole::kLoss, "loss", y);
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

TEST(BadInput, of_what_is_read_after_a_call_without_gradients_and_trained_with_is_none_of_an_evaluation) {
  TraceBuilder t;  // a rollout has come before, so that its phase still stands
  const Handle reward = t.value(finite(16).nan(1));
  const Handle y = t.in("", Phase::kValidation).op("sub", {{"self", reward}}, finite(16).nan(1), {{"other", 2}});
  const Handle loss = t.in("", Phase::kLoss).op("mul", {{"self", y}, {"other", t.value(finite(16))}}, finite(16).nan(1));
  t.mark(TensorRole::kLoss, "loss", loss);
  t.end_step();
  const Finding f = analysis_of(t).findings.at(0);
  EXPECT_EQ(f.title, "The loss of step 0 reads a tensor that was bad before it: 1 NaN of 16, in row 0");
  EXPECT_EQ(f.place.phase, Phase::kLoss);
  EXPECT_EQ(f.chain.nodes.at(1).phase, Phase::kLoss);
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

TEST(BadInput, that_another_process_or_thread_made_is_to_be_made_where_it_is_heard) {
  const std::pair<std::string, std::string> cases[] = {
      {"operations of the process that made a bad batch", "load-in-training"},
      {"operations of a DataLoader's workers", "load-in-training"},
      {"operations of the program's other threads", "make-in-training"},
      {"something else", "drop-bad-samples"},
  };
  for (const auto& [note, first] : cases) {
    for (const std::int64_t bad : {1, 0}) {
      TraceBuilder t;
      t.note(note, 1);
      const Handle given = t.value(finite(16).nan(bad));
      t.mark(TensorRole::kBatch, "given", given);
      const Handle y = t.in("fc").op("mul", {{"self", given}}, finite(16).nan(bad), {{"other", 2}});
      t.mark(TensorRole::kLoss, "loss", y);
      t.end_step();
      const Analysis a = analysis_of(t);
      ASSERT_EQ(a.findings.size(), static_cast<std::size_t>(bad)) << note;
      if (bad == 0) continue;
      EXPECT_EQ(a.findings[0].advice.front().id, first) << note;
      EXPECT_EQ(a.findings[0].advice.back().id, "drop-bad-samples") << note;
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

// (y - x) * mask: labels of which some are NaN, times numbers of which `zeros` are 0 and the others `rest`.
Analysis masked(std::int64_t nan, std::int64_t zeros, double rest, bool constant = false) {
  TraceBuilder t;
  t.in("", Phase::kLoss);
  const Numbers bad = finite(8).nan(nan);
  const Handle mask = t.value(finite(8).zeros(zeros).range(0, rest).smallest_of(rest));
  const Handle y = t.value(bad);
  const Handle d = t.op("sub", {{"self", y}, {"other", t.value(finite(8))}}, bad);
  const Handle m = constant ? t.op("mul", {{"self", d}}, bad, {{"other", 0}})
                            : t.called_from("train.py:9").op("mul", {{"self", d}, {"other", mask}}, bad);
  t.mark(TensorRole::kLoss, "loss", m);
  t.end_step();
  return analysis_of(t);
}

TEST(BadInput, that_a_mask_multiplies_is_to_be_selected_away_before) {
  const Analysis a = masked(3, 3, 1);
  ASSERT_EQ(table(a), "bad_input | <batch> | - | loss | step 0 | unknown | inferred\n");
  const Finding& f = a.findings[0];
  EXPECT_TRUE(f.title.ends_with("; mul multiplies it by 0, and it stays NaN")) << f.title;
  EXPECT_EQ(f.cause, "NaN times a mask of 0 is NaN");
  EXPECT_TRUE(f.explanation.starts_with("mul at train.py:9 multiplies by a mask, 3 of 8 of it 0:")) << f.explanation;
  EXPECT_EQ(f.advice.at(0).id, "select-before");
  EXPECT_EQ(f.advice.at(1).id, "record-ops");
  // A mask has no other numbers than 0 and 1, and as many zeros as there are NaN.
  for (const Analysis& other :
       {masked(3, 2, 1), masked(3, 3, 0.5), masked(3, 0, 1), masked(3, 8, 1), masked(3, 3, 1, true)}) {
    EXPECT_TRUE(other.findings.at(0).title.ends_with("3 NaN of 8, first in row 0")) << other.findings[0].title;
    EXPECT_EQ(other.findings[0].advice.at(0).id, "record-ops");
  }
  EXPECT_EQ(table(masked(0, 3, 1)), "clean\n");
}

}  // namespace
}  // namespace nanhunt
