// SPDX-License-Identifier: Apache-2.0
// Watching must not change the run: weights and optimizer state are compared byte for byte.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "hooks/engine/engine_hooks.h"
#include "tests/support/bytes_of.h"
#include "tests/support/scenario_names.h"
#include "tests/support/temp_dir.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt {
namespace {

std::vector<std::byte> bytes_after(engine::Trainer& trainer, std::uint32_t steps) {
  bool ended = false;  // by the library of the scaler
  for (std::uint32_t i = 0; i < steps && !ended; ++i) ended = !trainer.step().ended_by.empty();
  return testing_support::bytes_of(trainer);
}

class Neutrality : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Scenarios, Neutrality, testing::ValuesIn(testing_support::every_scenario()),
                         testing_support::scenario_case);

TEST_P(Neutrality, weights_after_200_steps_are_the_same_bytes_unwatched_and_watched) {
  const scenarios::Scenario& scenario = *scenarios::find_scenario(GetParam());
  // given the same run, unwatched
  const auto plain = bytes_after(*scenario.make({}).trainer, 200);
  ASSERT_FALSE(plain.empty());
  // when it is watched
  const testing_support::TempDir dir;
  RecorderOptions options;
  options.run_dir = dir.path();
  auto recorder = Recorder::open(options, RunInfo{});
  ASSERT_TRUE(recorder.is_ok()) << recorder.status().message();
  std::vector<std::byte> watched;
  {
    const auto run = scenario.make({});
    hooks::TrainerWatch watch(*run.trainer, **recorder);
    watched = bytes_after(*run.trainer, 200);
  }
  ASSERT_TRUE((*recorder)->close().is_ok());
  EXPECT_GT((*recorder)->counters().ops, 200u);
  // then not one byte differs
  ASSERT_EQ(plain.size(), watched.size());
  EXPECT_EQ(std::memcmp(plain.data(), watched.data(), plain.size()), 0);
}

}  // namespace
}  // namespace nanhunt
