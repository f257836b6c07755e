// SPDX-License-Identifier: Apache-2.0
// Scenarios as parameters of tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::testing_support {

template <typename Wanted>
std::vector<std::string> scenarios_where(Wanted&& wanted) {
  std::vector<std::string> names;
  for (const scenarios::Scenario& scenario : scenarios::all_scenarios()) {
    if (wanted(scenario)) names.push_back(scenario.name);
  }
  return names;
}

inline std::vector<std::string> every_scenario() {
  return scenarios_where([](const scenarios::Scenario&) { return true; });
}
// Repaired twins and healthy runs; and those with something planted.
inline bool is_clean(const scenarios::Scenario& s) { return s.expected.status == VerdictStatus::kClean; }
inline bool is_planted(const scenarios::Scenario& s) { return !is_clean(s); }

inline std::string scenario_case(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace nanhunt::testing_support
