// SPDX-License-Identifier: Apache-2.0
// Anomaly mode stops training where NaN is first seen in backward. The verdict names the origin all the same, and
// has PyTorch's words beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/engine/anomaly.h"
#include "tests/scenarios/hunt_scenario.h"
#include "tests/support/temp_dir.h"

namespace nanhunt {
namespace {

struct Stopped {
  const char* scenario;
  const char* function;  // where NaN is first seen
};
// Of each the origin is another op than this, or made an infinity that passed.
constexpr Stopped kStopped[] = {{"sqrt-backward", "MulBackward0"},      {"where-branch", "ExpBackward0"},
                                {"vae-log-variance", "MseLossBackward0"}, {"masked-softmax", "BmmBackward0"},
                                {"log-zero", "LogBackward0"}};

class Anomaly : public testing::TestWithParam<Stopped> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, Anomaly, testing::ValuesIn(kStopped), [](const auto& given) {
  std::string name = given.param.scenario;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

TEST_P(Anomaly, is_quoted_beside_the_origin) {
  const scenarios::Scenario& scenario = *scenarios::find_scenario(GetParam().scenario);
  const testing_support::TempDir dir;
  RecorderOptions options;
  options.run_dir = dir.path();
  auto recorder = Recorder::open(options, RunInfo{});
  ASSERT_TRUE(recorder.is_ok()) << recorder.status().message();
  std::string words;
  {
    const auto run = scenario.make({.rename_seed = {}, .fix = "", .anomaly = true});
    hooks::TrainerWatch watch(*run.trainer, **recorder);
    try {
      for (std::uint32_t i = 0; i < scenario.steps; ++i) run.trainer->step();
    } catch (const engine::AnomalyError& nan) {
      words = nan.what();
    }
  }
  ASSERT_TRUE((*recorder)->close().is_ok());
  EXPECT_THAT(words, testing::HasSubstr(GetParam().function));
  testing_support::Hunt hunt;
  auto analysis = analyze_run(dir.path());
  ASSERT_TRUE(analysis.is_ok());
  hunt.analysis = std::move(*analysis);
  expect_named(hunt, scenario.expected);
  EXPECT_THAT(hunt.analysis.findings.at(0).explanation, testing::HasSubstr("It said: \"" + words + "\""));
}

TEST(Anomaly, stops_no_healthy_run) {
  for (const char* name : {"sqrt-backward-fixed", "where-branch-fixed", "scaler-calibration-fixed"}) {
    const scenarios::Scenario& twin = *scenarios::find_scenario(name);
    const auto plain = twin.make({}), looked_at = twin.make({.rename_seed = {}, .fix = "", .anomaly = true});
    for (int i = 0; i < 20; ++i) EXPECT_EQ(plain.trainer->step().loss, looked_at.trainer->step().loss) << name;
  }
}

}  // namespace
}  // namespace nanhunt
