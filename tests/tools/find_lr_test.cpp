// SPDX-License-Identifier: Apache-2.0
// train --find-lr: a learning rate finder on a bundled scenario, its table, its report, and what check says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"
#include "tests/tools/sample_trace.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(FindLr, of_a_healthy_scenario_is_no_fault_in_any_format) {
  for (const char* scenario : {"high-lr-fixed", "static-scale-unchecked-fixed", "o2-no-masters-fixed", "scaler-calibration"}) {
    SCOPED_TRACE(scenario);
    const std::string run = make_folder() + "/run";
    const Outcome found = run_nanhunt({"train", scenario, "--find-lr", "--out", run});
    ASSERT_EQ(found.status, 0) << found.err;
    EXPECT_THAT(found.out, HasSubstr("learning rate"));
    EXPECT_THAT(found.out, HasSubstr("The smoothed loss falls fastest at"));
    const Outcome check = run_nanhunt({"check", run});
    EXPECT_EQ(check.status, 0) << check.out;
  }
}

TEST(FindLr, says_the_same_on_the_command_line_and_in_the_report) {
  const std::string run = make_folder() + "/run";
  const Outcome found = run_nanhunt({"train", "static-scale-unchecked-fixed", "--find-lr", "--out", run, "--json"});
  const json finder = json::parse(found.out)["lr_finder"];
  EXPECT_EQ(finder["points"][0]["lr"], 1e-7);
  EXPECT_LT(finder["points"].size(), 100U);
  EXPECT_EQ(finder["stops_at"], finder["last_step"]);
  EXPECT_GT(finder["suggestion"]["steepest"], 0);
  const json report = json::parse(run_nanhunt({"report", run, "--json"}).out);
  EXPECT_EQ(report["lr_ramp"], finder);
  // each step was recorded with its rate
  for (std::size_t i = 0; i < finder["points"].size(); ++i) {
    EXPECT_EQ(report["timeline"]["steps"][i]["lr"], finder["points"][i]["lr"]);
  }
}

TEST(FindLr, takes_as_many_steps_as_it_is_told) {
  const Outcome found =
      run_nanhunt({"train", "high-lr-fixed", "--find-lr", "--steps", "30", "--level", "off", "--json"});
  EXPECT_EQ(json::parse(found.out)["lr_finder"]["points"].size(), 30U);
  EXPECT_TRUE(json::parse(run_nanhunt({"train", "bad-batch", "--level", "off", "--json"}).out)["lr_finder"].is_null());
}

}  // namespace
}  // namespace nanhunt::testing_tools
