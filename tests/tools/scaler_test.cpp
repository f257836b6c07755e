// SPDX-License-Identifier: Apache-2.0
// train --scaler: the loss scalers of other libraries on a bundled scenario, and what the verdict says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Scaler, of_every_dynamic_family_that_calibrates_itself_is_no_fault) {
  for (const char* scaler : {"torch", "lightning", "apex", "apex-legacy", "apex-hysteresis", "deepspeed",
                             "deepspeed-fused", "fairseq", "megatron", "fastai"}) {
    SCOPED_TRACE(scaler);
    // given a scale that begins too high for a summed loss
    const std::string run = make_folder() + "/run";
    const Outcome trained = run_nanhunt({"train", "scaler-calibration", "--scaler", scaler, "--steps", "60", "--out",
                                         run});
    ASSERT_EQ(trained.status, 0) << trained.err;
    // then
    const Outcome check = run_nanhunt({"check", run});
    EXPECT_EQ(check.status, 0) << check.out;
  }
}

TEST(Scaler, says_once_what_its_library_prints) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "scaler-calibration", "--scaler", "apex", "--out", run});
  EXPECT_EQ(trained.status, 0);
  const std::string words = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0";
  EXPECT_THAT(trained.err, HasSubstr(words));
  EXPECT_EQ(trained.err.find("Gradient overflow", trained.err.find(words) + 10), std::string::npos) << trained.err;
  const json report = json::parse(run_nanhunt({"report", run, "--json"}).out);
  EXPECT_EQ(report["scaler"]["family"], "apex.amp");
}

TEST(Scaler, that_spends_hysteresis_is_told_so_and_lowered_nothing) {
  const std::string run = make_folder() + "/run";
  run_nanhunt({"train", "scaler-calibration", "--scaler", "megatron", "--out", run});
  const json report = json::parse(run_nanhunt({"report", run, "--json"}).out);
  std::vector<std::string> first;
  for (const json& event : report["scaler"]["events"]) first.push_back(event["what"]);
  ASSERT_GE(first.size(), 4u);
  EXPECT_EQ(std::vector(first.begin(), first.begin() + 4),
            (std::vector<std::string>{"skip", "hysteresis", "skip", "backoff"}));
}

TEST(Scaler, that_ends_training_ends_it_and_the_run_says_why) {
  const std::string run = make_folder() + "/run";
  const Outcome trained = run_nanhunt({"train", "hysteresis-collapse", "--steps", "100", "--out", run, "--json"});
  EXPECT_EQ(trained.status, 0) << trained.err;
  const json outcome = json::parse(trained.out);
  EXPECT_EQ(outcome["ended_by"], "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.");
  EXPECT_EQ(outcome["steps"], 21);
  EXPECT_EQ(run_nanhunt({"check", run}).status, 1);
}

TEST(Scaler, that_does_not_exist_or_does_not_fit_is_refused_with_words) {
  const Outcome unknown = run_nanhunt({"train", "bad-batch", "--scaler", "none"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("deepspeed-fused"));
  // torch's own takes no fp16 gradients without masters
  const std::string run = make_folder() + "/run";
  const Outcome refused = run_nanhunt({"train", "o2-no-masters", "--scaler", "torch", "--out", run});
  EXPECT_THAT(refused.out, HasSubstr("Attempting to unscale FP16 gradients."));
}

}  // namespace
}  // namespace nanhunt::testing_tools
