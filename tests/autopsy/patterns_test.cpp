// SPDX-License-Identifier: Apache-2.0
// Each pattern: a planted curve on which it is the first guess, and a twin on which it is silent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "src/autopsy/collect.h"
#include "src/autopsy/next_command.h"
#include "tests/autopsy/log_files.h"

namespace nanhunt::autopsy_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Values = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const Values kHealthy = {2.3, 2.2, 2.0, 1.9, 1.7, 1.8, 1.6, 1.5, 1.5, 1.4};
Values with(Values values, const Values& more) {
  values.insert(values.end(), more.begin(), more.end());
  return values;
}
std::string first_of(const autopsy::Evidence& evidence) {
  const auto guesses = guesses_of(evidence);
  return guesses.empty() ? "" : guesses[0];
}

TEST(Patterns, a_loss_that_grows_tenfold_before_it_is_bad_exploded) {
  const auto evidence = curves_of({{"loss", with(kHealthy, {4, 9, 40, 300, kInf})}});
  EXPECT_EQ(first_of(evidence), "exploding!");
  EXPECT_EQ(autopsy::judge(evidence).guesses[0].began.last_good, 13);
  EXPECT_THAT(guesses_of(curves_of({{"loss", with(kHealthy, {4, 9, 40, 300, 40, 2})}})), ElementsAre("healthy!"));
}

TEST(Patterns, one_spike_before_the_end_is_no_sure_explosion) {
  EXPECT_EQ(first_of(curves_of({{"loss", with(kHealthy, {80, kNan})}})), "exploding");
}

TEST(Patterns, a_healthy_curve_that_is_nan_at_once_is_sudden) {
  EXPECT_EQ(first_of(curves_of({{"loss", with(kHealthy, {kNan, kNan})}})), "sudden!");
  EXPECT_THAT(guesses_of(curves_of({{"loss", with(kHealthy, {1.3, 1.3})}})), ElementsAre("healthy!"));
}

TEST(Patterns, a_gap_in_the_log_leaves_sudden_possible) {
  const auto evidence = evidence_of(
      "m.jsonl",
      "{\"step\":0,\"loss\":2}\n{\"step\":100,\"loss\":2}\n{\"step\":200,\"loss\":2}\n{\"step\":300,\"loss\":2}\n"
      "{\"step\":400,\"loss\":2}\n{\"step\":500,\"loss\":2}\n{\"step\":600,\"loss\":NaN}\n");
  EXPECT_EQ(first_of(evidence), "sudden");
  EXPECT_THAT(autopsy::judge(evidence).guesses[0].unlikely, IsEmpty());
}

TEST(Patterns, a_loss_that_grew_a_thousandfold_is_not_surely_healthy) {
  EXPECT_EQ(first_of(curves_of({{"loss", {3, 30, 3e3, 3e5, 3e8}}})), "healthy");
  EXPECT_EQ(first_of(curves_of({{"loss", {3, 30, 3e3, 30, 2}}})), "healthy!");
}

TEST(Patterns, notes_of_overflows_outrank_a_column_of_the_scale_that_stands_still) {
  std::string table, notes;
  double scale = 128;
  for (int step = 0; step < 20; ++step) {
    table += "num_updates: " + std::to_string(step) + " | loss: 2.5 | loss_scale: 128\n";
    scale /= 2;
    notes += "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: " + std::to_string(scale) + "\n";
  }
  EXPECT_EQ(first_of(evidence_of("train.log", table)), "healthy!");
  EXPECT_THAT(guesses_of(evidence_of("train.log", table + notes)), Contains(StartsWith("scaler_collapsing")));
}

TEST(Patterns, a_first_loss_that_is_bad_points_to_the_set_up) {
  EXPECT_EQ(first_of(curves_of({{"loss", {kNan, kNan, kNan}}})), "first_step!");
  EXPECT_EQ(first_of(evidence_of("m.jsonl", "{\"step\":50,\"loss\":NaN}\n")), "first_step");
  EXPECT_EQ(first_of(curves_of({{"loss", {2.0, kNan, kNan}}})), "first_step");
  EXPECT_THAT(guesses_of(evidence_of("m.jsonl", "{\"step\":100,\"loss\":2}\n{\"step\":200,\"loss\":NaN}\n")),
              IsEmpty());
  EXPECT_THAT(guesses_of(curves_of({{"loss", {2.0, 1.9, 1.8}}})), ElementsAre("healthy!"));
}

TEST(Patterns, a_scale_that_falls_below_one_collapsed) {
  Values scale(8, 1024), loss(24, 2.0);
  for (int i = 0; i < 16; ++i) scale.push_back(scale.back() / 2);
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"loss_scale", scale}})), "scaler_collapsing!");
}

TEST(Patterns, a_scale_that_falls_at_the_start_and_then_stands_calibrated) {
  const auto evidence =
      curves_of({{"loss", Values(20, 2.0)}, {"loss_scale", with({65536, 32768, 16384, 8192}, Values(16, 4096))}});
  EXPECT_EQ(first_of(evidence), "scaler_calibrating!");
  EXPECT_EQ(autopsy::judge(evidence).outcome, autopsy::Outcome::kNothingBad);
}

TEST(Patterns, bad_gradients_while_a_scaler_calibrates_are_harmless) {
  const auto evidence = curves_of({{"loss", Values(20, 2.0)},
                                   {"grad_norm", with({kInf, kInf, kNan}, Values(17, 1.0))},
                                   {"loss_scale", with({65536, 32768, 16384}, Values(17, 8192))}});
  EXPECT_EQ(autopsy::judge(evidence).outcome, autopsy::Outcome::kNothingBad);
}

TEST(Patterns, overflows_with_steps_that_work_between_them_do_not_collapse_the_scale) {
  std::string apart, together;
  double scale = 65536;
  for (int i = 0; i < 13; ++i, scale /= 2) {
    const std::string line = "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: " + std::to_string(scale) +
                             ", reducing to " + std::to_string(scale / 2) + "\n";
    together += line;
    apart += line;
    for (int k = 0; k < 5; ++k) apart += "step " + std::to_string(i * 5 + k) + " loss 2.0\n";
  }
  EXPECT_EQ(first_of(evidence_of("a.log", "step 1 loss 2.0\n" + together)), "scaler_collapsing!");
  EXPECT_THAT(guesses_of(evidence_of("a.log", apart)), Not(Contains(StartsWith("scaler_collapsing"))));
}

TEST(Patterns, deepspeeds_last_words_mean_collapse) {
  EXPECT_EQ(first_of(evidence_of(
                "a.log",
                "step 1 loss 2.0\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n"
                "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n")),
            "scaler_collapsing!");
}

TEST(Patterns, an_evaluation_that_alone_is_bad_is_told_from_training) {
  const auto log = [](const char* value) {
    return evidence_of(
        "m.jsonl", std::string("{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":") + value +
                       "}\n{\"step\":3,\"loss\":2}\n");
  };
  EXPECT_EQ(first_of(log("NaN")), "eval_only!");
  EXPECT_EQ(first_of(log("2")), "healthy!");
}

TEST(Patterns, a_gradient_that_is_bad_beside_a_finite_loss_comes_from_backward) {
  const Values loss = with(kHealthy, {1.3, kNan}), norm = with(Values(10, 1.0), {kNan, kNan});
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"grad_norm", norm}})), "gradient_only!");
  const auto together =
      guesses_of(curves_of({{"loss", with(kHealthy, {kNan})}, {"grad_norm", with(Values(10, 1.0), {kNan})}}));
  EXPECT_THAT(together, Not(Contains(StartsWith("gradient_only"))));
}

TEST(Patterns, a_restart_right_before_is_named) {
  std::string lines;
  for (int step = 0; step < 10; ++step) lines += "{\"step\":" + std::to_string(step) + ",\"loss\":2}\n";
  const std::string resumed = lines + "{\"step\":8,\"loss\":2}\n{\"step\":9,\"loss\":NaN}\n";
  EXPECT_EQ(first_of(evidence_of("m.jsonl", resumed)), "after_resume!");
  std::string later = lines;
  for (int step = 8; step < 30; ++step) later += "{\"step\":" + std::to_string(step) + ",\"loss\":2}\n";
  EXPECT_THAT(guesses_of(evidence_of("m.jsonl", later + "{\"step\":30,\"loss\":NaN}\n")),
              Not(Contains(StartsWith("after_resume"))));
}

TEST(Patterns, a_run_that_begins_anew_in_one_log_is_not_resumed) {
  std::string lines;
  for (int step = 0; step < 10; ++step) lines += "{\"step\":" + std::to_string(step) + ",\"loss\":2}\n";
  const auto evidence = evidence_of("m.jsonl", lines + "{\"step\":0,\"loss\":2}\n{\"step\":1,\"loss\":NaN}\n");
  EXPECT_THAT(guesses_of(evidence), Not(Contains(StartsWith("after_resume"))));
}

TEST(Patterns, a_jump_of_the_learning_rate_right_before_is_named) {
  const Values loss = with(kHealthy, {kNan});
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"lr", with(Values(9, 1e-3), {1.0, 1.0})}})), "lr_event!");
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"lr", with({0.0, 1e-4, 2e-4}, Values(8, 3e-4))}})), "sudden!");
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"lr", with(Values(9, 1e-3), {kNan, kNan})}})), "lr_event!");
}

TEST(Patterns, what_returns_at_one_distance_is_the_same_batch) {
  Values loss(40, 2.0);
  for (std::size_t i = 6; i < 40; i += 10) loss[i] = kNan;
  EXPECT_EQ(first_of(curves_of({{"loss", loss}})), "periodic!");
  loss[36] = 2.0;
  loss[31] = kNan;
  EXPECT_EQ(first_of(curves_of({{"loss", loss}})), "periodic");
}

TEST(Patterns, zeros_beside_bad_gradients_are_the_filter_of_trainer) {
  const Values loss = with(kHealthy, {0, 0, 0, 0}), bad = with(Values(10, 1.0), {kNan, kNan, kNan, kNan});
  EXPECT_THAT(guesses_of(curves_of({{"loss", loss}, {"grad_norm", bad}})),
              ElementsAre("hidden_by_filter!", "gradient_only"));
  EXPECT_EQ(first_of(curves_of({{"loss", loss}, {"grad_norm", with(Values(10, 1.0), Values(4, 0.0))}})), "healthy!");
}

TEST(Patterns, a_scale_at_its_minimum_is_said_by_deepspeed_and_by_fairseq) {
  for (const char* line :
       {"Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."}) {
    const std::string text =
        std::string("step 1 loss 2\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\n") + line + "\n";
    EXPECT_EQ(first_of(evidence_of("a.log", text)), "scaler_collapsing!") << line;
  }
  EXPECT_EQ(first_of(evidence_of("a.log", "step 1 loss 2\nMinimum loss scale reached (0.0001)\n")),
            "scaler_collapsing!");
  EXPECT_THAT(guesses_of(evidence_of("a.log", "step 1 loss 2\nminimum loss scale: 0.0001\n")), ElementsAre("healthy!"));
}

TEST(Patterns, nan_in_place_of_what_a_row_does_not_have_is_no_bad_number) {
  const std::string head = "step,loss,eval_loss\n",
                    rows = "1,2.0,nan\n2,1.9,nan\n2,nan,2.1\n3,1.8,nan\n4,1.7,nan\n4,nan,2.0\n";
  EXPECT_THAT(guesses_of(evidence_of("m.csv", head + rows)), ElementsAre("healthy!"));
  // A row without either is a loss that was bad, and so is an infinity.
  EXPECT_THAT(guesses_of(evidence_of("m.csv", head + rows + "5,nan,nan\n")), Not(Contains("healthy!")));
  EXPECT_THAT(guesses_of(evidence_of("m.csv", head + rows + "5,nan,inf\n")), Not(Contains("healthy!")));
  // Where one row has both, the others have them too.
  EXPECT_THAT(guesses_of(evidence_of("m.csv", head + "1,2.0,2.0\n" + rows)), Not(Contains("healthy!")));
  EXPECT_THAT(guesses_of(evidence_of("m.jsonl",
                                     "{\"step\":1,\"loss\":2,\"eval_loss\":NaN}\n"
                                     "{\"step\":1,\"loss\":NaN,\"eval_loss\":2}\n")),
              ElementsAre("healthy!"));
}

TEST(Patterns, a_part_of_the_loss_is_not_taken_for_the_whole) {
  const Values nans(kHealthy.size(), kNan), zeros(kHealthy.size(), 0.0);
  // Both bad at once: the whole is judged.
  const auto both = curves_of({{"kl_loss", with(kHealthy, {kNan})}, {"loss", with(kHealthy, {kNan})}});
  EXPECT_EQ(autopsy::choose_curves(both).loss.series->name, "loss");
  const auto beside = curves_of({{"kl_loss", with(kHealthy, {kNan, kNan})}, {"loss", with(kHealthy, {1.4, 1.3})}});
  EXPECT_EQ(first_of(beside), "sudden");
  EXPECT_EQ(first_of(curves_of({{"kl_loss", with(kHealthy, {kNan, kNan})}})), "sudden!");
  // A part that is 0 to the end is no loss that a filter hides.
  EXPECT_THAT(guesses_of(curves_of({{"kl_loss", with({0.5}, zeros)}, {"loss", with({2.4}, kHealthy)}})),
              ElementsAre("healthy!"));
}

TEST(Patterns, a_loss_that_is_null_to_the_end_is_not_healthy) {
  std::string rows;
  for (int step = 0; step < 9; ++step) rows += "{\"step\":" + std::to_string(step) + ",\"loss\":2,\"lr\":1}\n";
  std::string lost;
  for (int step = 9; step < 14; ++step) lost += "{\"step\":" + std::to_string(step) + ",\"loss\":null,\"lr\":1}\n";
  const auto evidence = evidence_of("m.jsonl", rows + lost);
  EXPECT_THAT(guesses_of(evidence), ElementsAre("lost_values"));
  const auto judgement = autopsy::judge(evidence);
  EXPECT_EQ(judgement.outcome, autopsy::Outcome::kNothingToJudge);
  EXPECT_EQ(judgement.guesses[0].began.last_good, 8);
  EXPECT_EQ(judgement.guesses[0].began.first_bad, 9);
  // It came back; other rows never had one; another phase has a loss of its own.
  EXPECT_THAT(guesses_of(evidence_of("m.jsonl", rows + lost + "{\"step\":14,\"loss\":2}\n")), ElementsAre("healthy!"));
  EXPECT_THAT(guesses_of(evidence_of("m.csv", "step,loss,lr\n1,2,\n1,,1\n1,,1\n2,2,\n2,,1\n2,,1\n2,,1\n")),
              ElementsAre("healthy!"));
  EXPECT_THAT(guesses_of(evidence_of("m.csv", "step,loss,phase2/loss\n1,2,\n2,2,\n3,,1\n4,,1\n5,,1\n6,,1\n")),
              ElementsAre("healthy!"));
}

TEST(Patterns, another_exception_is_no_numeric_evidence) {
  const auto evidence = evidence_of(
      "a.log", "step 1 loss 2\nTraceback (most recent call last):\n  File \"t.py\", line 1, in f\nKeyboardInterrupt\n");
  EXPECT_THAT(guesses_of(evidence), ElementsAre("died_otherwise!"));
  EXPECT_EQ(autopsy::judge(evidence).outcome, autopsy::Outcome::kNothingBad);
}

TEST(Patterns, the_last_values_of_a_run_alone_say_that_it_is_bad_and_not_why) {
  const auto evidence = evidence_of("wandb-summary.json", "{\"train/loss\": NaN, \"_step\": 900}");
  EXPECT_THAT(guesses_of(evidence), IsEmpty());
  EXPECT_EQ(autopsy::judge(evidence).outcome, autopsy::Outcome::kBadNumbers);
  EXPECT_THAT(autopsy::judge(evidence).headline, HasSubstr("does not say why"));
}

TEST(Patterns, nothing_to_judge_and_damage_have_outcomes_of_their_own) {
  EXPECT_EQ(autopsy::judge(evidence_of("a.log", "hello\n")).outcome, autopsy::Outcome::kNothingToJudge);
  EXPECT_EQ(autopsy::judge(evidence_of("m.jsonl", "{\"step\":1,\"loss\":2}\n{\"st\n")).outcome,
            autopsy::Outcome::kDamaged);
  EXPECT_EQ(autopsy::judge(evidence_of("m.jsonl", "{\"step\":1,\"loss\":NaN}\n{\"st\n")).outcome,
            autopsy::Outcome::kBadNumbers);
}

TEST(Patterns, the_command_resumes_from_the_newest_sound_checkpoint_before) {
  std::string lines;
  for (int step = 0; step < 1000; ++step) lines += "{\"step\":" + std::to_string(step) + ",\"loss\":2}\n";
  auto evidence = evidence_of("m.jsonl", lines + "{\"step\":1000,\"loss\":NaN}\n");
  for (const std::uint64_t step : {400u, 800u, 900u, 1200u}) {
    evidence.checkpoints.push_back({"checkpoint-" + std::to_string(step), step, 0, step == 900});
  }
  const auto judgement = autopsy::judge(evidence);
  const auto resume = [&](autopsy::Weights newest, autopsy::Weights others) {
    return autopsy::resume_from(evidence, judgement,
                                [=](const std::string& path) { return path == "checkpoint-800" ? newest : others; });
  };
  using autopsy::Weights;
  ASSERT_TRUE(resume(Weights::kNotJudged, Weights::kNotJudged));
  EXPECT_EQ(resume(Weights::kNotJudged, Weights::kBad)->checkpoint->step, 800u);
  EXPECT_EQ(resume(Weights::kSound, Weights::kBad)->checkpoint->step, 800u);
  EXPECT_THAT(resume(Weights::kSound, Weights::kBad)->text, HasSubstr("its weights are sound"));
  // One whose weights are bad is never gone on from.
  EXPECT_EQ(resume(Weights::kBad, Weights::kSound)->checkpoint->step, 400u);
  EXPECT_THAT(resume(Weights::kBad, Weights::kSound)->text,
              HasSubstr("checkpoint-800 is newer, and its weights are bad"));
  EXPECT_EQ(resume(Weights::kBad, Weights::kBad)->checkpoint, nullptr);
  EXPECT_THAT(resume(Weights::kBad, Weights::kBad)->bad, ElementsAre("checkpoint-800", "checkpoint-400"));
  EXPECT_EQ(resume(Weights::kUnreadable, Weights::kSound)->checkpoint->step, 400u);
  EXPECT_THAT(resume(Weights::kUnreadable, Weights::kSound)->text, HasSubstr("cannot be read"));
  const auto command = autopsy::next_command(evidence, judgement);
  EXPECT_FALSE(command.known);
  EXPECT_THAT(command.text(), HasSubstr("YOUR COMMAND"));
  EXPECT_THAT(command.words, Contains("--stop-on-fault"));
  evidence.commands = {{{"python", "a b.py"}, 0}};
  EXPECT_THAT(autopsy::next_command(evidence, judgement).text(), Not(HasSubstr("YOUR COMMAND")));
  EXPECT_THAT(autopsy::next_command(evidence, judgement).text(), HasSubstr("'a b.py'"));
}

TEST(Patterns, command_and_checkpoint_are_those_of_the_run_that_is_judged) {
  const std::string head = "$ python ", good = "\nstep 1 loss 2\nstep 2 loss 2\nstep 3 loss 2\nstep 4 loss 2\n";
  autopsy::Evidence evidence;
  autopsy::add_file(head + "a.py" + good, "a/train.log", evidence);
  autopsy::add_file(head + "b.py" + good + "step 5 loss nan\n", "b/train.log", evidence);
  evidence.checkpoints = {{"a/step_4.pt", 4, 0, false}, {"b/step_2.pt", 2, 0, false}};
  const auto judgement = autopsy::judge(evidence);
  EXPECT_THAT(autopsy::next_command(evidence, judgement).words, Contains("b.py"));
  const auto resume =
      autopsy::resume_from(evidence, judgement, [](const std::string&) { return autopsy::Weights::kSound; });
  EXPECT_EQ(resume->checkpoint->path, "b/step_2.pt");
}

TEST(Patterns, where_all_checkpoints_are_later_it_is_said_that_none_is_left) {
  auto evidence = evidence_of("m.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":NaN}\n");
  evidence.checkpoints = {{"step_9.pt", 9, 0, false}};
  const auto resume = autopsy::resume_from(evidence, autopsy::judge(evidence),
                                           [](const std::string&) { return autopsy::Weights::kSound; });
  ASSERT_TRUE(resume);
  EXPECT_EQ(resume->checkpoint, nullptr);
  EXPECT_THAT(resume->text, HasSubstr("no checkpoint from before it is left"));
}

}  // namespace
}  // namespace nanhunt::autopsy_testing
