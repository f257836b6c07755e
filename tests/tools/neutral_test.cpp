// SPDX-License-Identifier: Apache-2.0
// train --prove-neutral, for every scenario.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/run_program.h"

namespace nanhunt::testing_tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(ProveNeutral, holds_for_every_scenario) {
  const json list = json::parse(run_nanhunt({"train", "--list", "--json"}).out);
  ASSERT_GT(list.size(), 30u);
  for (const json& scenario : list) {
    const std::string name = scenario["name"];
    const Outcome run = run_nanhunt({"train", name, "--prove-neutral", "--steps", "14", "--json"});
    EXPECT_EQ(run.status, 0) << name << run.err;
    const json proof = json::parse(run.out);
    EXPECT_EQ(proof["neutral"], true) << name << "\n" << run.out;
    EXPECT_GT(proof["bytes"].get<std::uint64_t>(), 1000u) << name;
    ASSERT_EQ(proof["levels"].size(), 2u);
    EXPECT_EQ(proof["levels"][0]["level"], "off");
    EXPECT_EQ(proof["levels"][1]["level"], "ops");
    EXPECT_GT(proof["levels"][1]["ops"].get<std::uint64_t>(), 100u) << name;
  }
}

TEST(ProveNeutral, prints_a_table_that_people_read) {
  const Outcome run = run_nanhunt({"train", "bad-batch", "--prove-neutral", "--steps", "10"});
  EXPECT_EQ(run.status, 0);
  for (const char* word : {"off", "ops", "differing bytes", "Neutral: watching changed no bit."}) {
    EXPECT_THAT(run.out, HasSubstr(word));
  }
}

TEST(ProveNeutral, leaves_no_trace_and_refuses_what_it_has_no_use_for) {
  EXPECT_EQ(run_nanhunt({"train", "bad-batch", "--prove-neutral", "--out", "x"}).status, 2);
  EXPECT_EQ(run_nanhunt({"train", "bad-batch", "--prove-neutral", "--level", "ops"}).status, 2);
}

}  // namespace
}  // namespace nanhunt::testing_tools
