// SPDX-License-Identifier: Apache-2.0
// Each fault with what must be said of it, written down before an analyzer is run. README.md has the table.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/campaign/rig.h"
#include "tests/campaign/score.h"

namespace nanhunt::campaign {

struct Fault {
  std::string kind, form;
  Settings settings;
  Plan plan;
  Expected expected;
};
std::vector<Fault> all_faults();
std::vector<Fault> arithmetic_faults(), memory_faults(), training_faults();  // one file each

// Runs in which nothing is wrong, and much looks as if.
struct Healthy {
  std::string kind;
  Settings settings;
  Plan plan;
};
std::vector<Healthy> healthy_runs();

// Shared by faults.
inline constexpr std::uint32_t kFaultStep = 5;
double amax_of(const engine::Tensor& x);
std::pair<double, double> range_of(const engine::Tensor& x);
void set_element(engine::Tensor tensor, std::int64_t index, double value);  // memory only: no version, nobody is told

}  // namespace nanhunt::campaign
