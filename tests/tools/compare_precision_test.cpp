// SPDX-License-Identifier: Apache-2.0
// compare-precision on models and scenarios, and train --precision.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json without_times(json comparison) {
  for (const char* list : {"runs", "batch_sizes"}) {
    for (json& entry : comparison[list]) entry.erase("volatile");
  }
  return comparison;
}

json compared(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "compare-precision");
  arguments.emplace_back("--json");
  const Outcome outcome = run_nanhunt(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return json::parse(outcome.out);
}

const json& run_of(const json& comparison, const std::string& recipe) {
  for (const json& run : comparison["runs"]) {
    if (run["recipe"] == recipe) return run;
  }
  throw std::out_of_range(recipe);
}

TEST(ComparePrecision, of_a_healthy_model_finds_mixed_precision_as_good_as_fp32) {
  const json comparison = compared({"mlp", "--steps", "60", "--batches", "8,16"});
  EXPECT_EQ(comparison["schema"], "nanhunt.precision");
  ASSERT_EQ(comparison["runs"].size(), 3U);
  for (const json& run : comparison["runs"]) {
    SCOPED_TRACE(run["recipe"].get<std::string>());
    EXPECT_EQ(run["outcome"], "same");
    EXPECT_TRUE(run["keep"].empty() && run["trials"].empty());
    EXPECT_GT(run["validation"]["accuracy"], 0.3);
    EXPECT_NEAR(run["validation"]["loss"].get<double>(), run["validation_in_fp32"]["loss"].get<double>(), 0.02);
    EXPECT_GT(run["memory"]["peak"], 0);
    EXPECT_GT(run["volatile"]["step_time"]["median"], 0);
  }
  EXPECT_EQ(comparison["batch_sizes"].size(), 6U);
}

TEST(ComparePrecision, names_the_projection_of_t5_that_overflows_in_fp16) {
  const json comparison = compared({"t5-feed-forward", "--steps", "40"});
  const json& fp16 = run_of(comparison, "torch-amp-fp16");
  EXPECT_EQ(fp16["outcome"], "lost_steps") << "the scaler skips the one step";
  EXPECT_EQ(fp16["nonfinite_steps"], 1);
  EXPECT_EQ(fp16["keep"], json({"ffn.wo"}));
  EXPECT_EQ(fp16["layers"][0]["layer"], "ffn.wo");
  EXPECT_EQ(fp16["layers"][0]["first_overflow"], 12);
  EXPECT_EQ(run_of(comparison, "torch-amp-bf16")["outcome"], "same");
}

TEST(ComparePrecision, gives_the_same_bytes_twice_but_for_times) {
  const std::vector<std::string> arguments = {"scale-collapse", "--steps", "20", "--recipes", "fp16", "--seed", "3"};
  EXPECT_EQ(without_times(compared(arguments)), without_times(compared(arguments)));
}

TEST(ComparePrecision, takes_every_recipe_on_one_model) {
  const json comparison = compared({"mlp", "--steps", "20", "--recipes", "all", "--probes", "1"});
  ASSERT_EQ(comparison["runs"].size(), 16U) << "fp32 and 15 others";
  for (const json& run : comparison["runs"]) EXPECT_NE(run["outcome"], "refused") << run["recipe"] << run["why"];
}

TEST(ComparePrecision, writes_text_and_a_page) {
  const std::string page = make_folder() + "/page.html";
  const Outcome outcome =
      run_nanhunt({"compare-precision", "mlp", "--steps", "20", "--recipes", "bf16", "--html", page});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("torch-amp-bf16"));
  EXPECT_THAT(outcome.out, HasSubstr("nothing of a GPU"));
  EXPECT_THAT(outcome.err, HasSubstr("wrote " + page));
  EXPECT_THAT(read_file(page), HasSubstr("Loss by step in torch-amp-bf16 and in fp32"));
  const Outcome alone = run_nanhunt({"compare-precision", "mlp", "--steps", "5", "--recipes", "bf16", "--html", "-"});
  EXPECT_THAT(alone.out, ::testing::StartsWith("<!doctype html>"));
  const Outcome nowhere =
      run_nanhunt({"compare-precision", "mlp", "--steps", "5", "--recipes", "bf16", "--html", "/nowhere/page.html"});
  EXPECT_EQ(nowhere.status, 6);
}

TEST(ComparePrecision, lists_what_it_takes) {
  const Outcome text = run_nanhunt({"compare-precision", "--list"});
  EXPECT_EQ(text.status, 0);
  for (const char* word : {"se-resnext", "apex-o1", "two-losses-one-scaler"}) EXPECT_THAT(text.out, HasSubstr(word));
  const json list = json::parse(run_nanhunt({"compare-precision", "--list", "--json"}).out);
  EXPECT_EQ(list["models"].size(), 5U);
  EXPECT_EQ(list["recipes"].size(), 16U);
  EXPECT_GT(list["scenarios"].size(), 30U);
}

TEST(ComparePrecision, refuses_what_it_cannot_do_with_what_to_do_instead) {
  const auto refused = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "compare-precision");
    const Outcome outcome = run_nanhunt(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    return outcome.err;
  };
  EXPECT_THAT(refused({}), HasSubstr("--list"));
  EXPECT_THAT(refused({"lenet"}), HasSubstr("there is no model or scenario 'lenet'"));
  EXPECT_THAT(refused({"mlp", "--recipes", "fp8"}), HasSubstr("there is no recipe 'fp8'"));
  EXPECT_THAT(refused({"mlp", "--recipes", ","}), HasSubstr("names none"));
  EXPECT_THAT(refused({"mlp", "--batches", "8,x"}), HasSubstr("'x' is no batch size"));
  EXPECT_THAT(refused({"mlp", "--batches", "99999"}), HasSubstr("from 2 to 1024"));
  EXPECT_THAT(refused({"mlp", "--batch-size", "1"}), HasSubstr("from 2 to 1024"));
  EXPECT_THAT(refused({"high-lr", "--batches", "24"}), HasSubstr("a size that divides"));
  EXPECT_THAT(refused({"two-losses-one-scaler"}), HasSubstr("trains in its own recipe alone"));
  EXPECT_THAT(refused({"ddp-one-rank-overflows"}), HasSubstr("several ranks"));
  EXPECT_THAT(refused({"mlp", "--json", "--html", "-"}), HasSubstr("Name a file"));
  EXPECT_THAT(refused({"mlp", "--list"}), HasSubstr("--list"));
  EXPECT_THAT(refused({"mlp", "--tolerance", "2"}), HasSubstr("--tolerance"));
  EXPECT_THAT(refused({"mlp", "--tolerance", "nan"}), HasSubstr("--tolerance"));
}

TEST(ComparePrecision, says_nothing_of_others_where_fp32_has_learnt_nothing) {
  const Outcome outcome = run_nanhunt({"compare-precision", "mlp", "--steps", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fp32 has learnt next to nothing in 2 steps"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("What helps")));
}

TEST(ComparePrecision, where_fp32_itself_fails_says_so) {
  const Outcome outcome = run_nanhunt({"compare-precision", "high-lr", "--steps", "20"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fp32 itself does not stay finite: nanhunt train high-lr finds out why"));
}

TEST(Precision, of_train_tries_no_fixes_for_they_are_made_for_the_scenarios_own_recipe) {
  const std::string folder = make_folder();
  const Outcome outcome = run_nanhunt({"train", "t5-feed-forward", "--precision", "fp16", "--out", folder + "/run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("did not help")));
  const Outcome report = run_nanhunt({"report", "--text", folder + "/run"});
  EXPECT_THAT(report.out, HasSubstr("ffn.wo"));
  EXPECT_THAT(report.out, Not(HasSubstr("What does not help")));
}

TEST(Precision, that_a_scenario_does_not_take_is_refused_and_no_loss_is_told) {
  const Outcome outcome = run_nanhunt({"train", "vae-log-variance", "--precision", "O2", "--out", make_folder() + "/run"});
  EXPECT_EQ(outcome.status, 2) << outcome.out;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("apex-o2 does not take this scenario: "));
}

TEST(Precision, of_train_is_another_recipe_than_the_scenarios_own) {
  const std::string folder = make_folder();
  // given Adam in pure fp16, whose eps is 0: in torch.amp its state is fp32
  const Outcome own = run_nanhunt({"train", "adam-eps", "--no-verify", "--out", folder + "/own"});
  EXPECT_THAT(own.out, HasSubstr("rounds to 0 in fp16"));
  const Outcome mixed = run_nanhunt({"train", "adam-eps", "--precision", "fp16", "--out", folder + "/mixed"});
  EXPECT_EQ(mixed.status, 0) << mixed.err;
  EXPECT_EQ(run_nanhunt({"check", folder + "/mixed"}).status, 0);
  // and back: what was repaired by its recipe falls back
  const Outcome pure = run_nanhunt(
      {"train", "sixteen-true-adam-fixed", "--precision", "16-true", "--no-verify", "--out", folder + "/pure"});
  EXPECT_THAT(pure.out, HasSubstr("rounds to 0 in fp16"));
  EXPECT_EQ(run_nanhunt({"train", "adam-eps", "--precision", "fp8"}).status, 2);
  EXPECT_THAT(run_nanhunt({"train", "two-losses-one-scaler", "--precision", "bf16"}).err,
              HasSubstr("its own recipe alone"));
}

}  // namespace
}  // namespace nanhunt::testing_tools
