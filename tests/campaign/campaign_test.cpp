// SPDX-License-Identifier: Apache-2.0
// A slice of the campaign on a fixed seed, and each family by itself: its fault acts, and its twin is clean.
#include "tests/campaign/campaign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/campaign/runner.h"
#include "tests/support/temp_dir.h"

namespace nanhunt::campaign {
namespace {

using testing_support::TempDir;

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family* family : all_families()) names.emplace_back(family->name);
  return names;
}

std::string case_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class PlantedFamily : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Campaign, PlantedFamily, testing::ValuesIn(family_names()), case_name);

TEST_P(PlantedFamily, does_harm_that_its_twin_without_the_fault_does_not) {
  const TempDir folder;
  // given a draw of the family that did harm, by its paired clean run and not by what the analyzer says
  const RunResult run = run_one({.campaign_seed = 8, .healthy = false, .index = 0},
                                {.scratch = folder.path(), .keep_trace = false, .only_family = GetParam()});
  ASSERT_TRUE(run.planted) << run.failure;
  EXPECT_EQ(run.failed, 0) << run.failure;
  EXPECT_FALSE(run.harm.empty());
  // then nothing is reported where the same run is made without it
  const Answer twin = judge_twin(run.drawn, folder.path("twin"));
  EXPECT_FALSE(twin.fault) << run.settings << ": " << twin.headline;
}

TEST(Campaign, a_slice_names_every_origin_but_the_known_misses) {
  const TempDir folder;
  const std::vector<nlohmann::json> runs =
      run_campaign({.faults = 45, .healthy = 15, .seed = 9, .jobs = 2, .work = folder.path(), .only_family = {}});
  const nlohmann::json s = summarize(runs, 9);
  EXPECT_EQ(s["faults"], 45);
  EXPECT_EQ(s["healthy"], 15);
  EXPECT_EQ(s["false_faults"], 0);
  EXPECT_TRUE(s["not_planted"].empty()) << s["not_planted"].dump(1);
  // README.md says why.
  const std::set<std::string> known = {"bit-flip at ops", "bit-flip at sentinel"};
  for (const nlohmann::json& miss : s["misses"]) {
    const std::string what = miss["family"].get<std::string>() + " at " + miss["level"].get<std::string>();
    EXPECT_TRUE(known.contains(what)) << miss.dump(1);
  }
}

TEST(Campaign, goes_on_from_the_runs_it_finds_and_says_the_same) {
  const TempDir folder;
  const CampaignOptions options{.faults = 3, .healthy = 1, .seed = 7, .jobs = 1, .work = folder.path(),
      .only_family = {}};
  // given a campaign, and another one over the same folder with more to do
  const auto first = run_campaign(options);
  CampaignOptions more = options;
  more.faults = 5;
  const auto second = run_campaign(more);
  // then what was finished stands, and a campaign without a past says the same
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(second[i], first[i]);
  const TempDir fresh;
  more.work = fresh.path();
  more.jobs = 2;
  auto again = run_campaign(more);
  for (std::size_t i = 0; i < again.size(); ++i) {
    for (nlohmann::json& level : again[i]["levels"]) level.erase("trace");
    nlohmann::json known = second[i];
    for (nlohmann::json& level : known["levels"]) level.erase("trace");
    EXPECT_EQ(again[i], known);
  }
}

}  // namespace
}  // namespace nanhunt::campaign
