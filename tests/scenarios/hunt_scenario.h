// SPDX-License-Identifier: Apache-2.0
// Runs one bundled scenario watched and hands back what the analyzer made of its trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hooks/engine/engine_hooks.h"
#include "nanhunt/analyzer.h"
#include "nanhunt/engine/trainer.h"
#include "tools/nanhunt/scenarios/scenario.h"

namespace nanhunt::testing_support {

struct Hunt {
  Analysis analysis;
  RecorderCounters counters;
  std::vector<std::pair<std::string, std::string>> renamed;  // old path -> new path
  // The name a path has in this hunt.
  std::string renamed_path(const std::string& path) const;
};

struct HuntOptions {
  std::optional<std::uint64_t> rename_seed;
  std::uint32_t steps = 0;    // 0: the scenario's own
  bool verify_fixes = false;  // as `nanhunt train` does
  bool probe = false;         // compute the origin again, as `nanhunt train` does
  engine::Device device = {};
  hooks::DeviceStats device_stats = hooks::WatchOptions{}.device_stats;
};

// Throws std::runtime_error with the message of whatever failed.
Hunt hunt_scenario(const scenarios::Scenario& scenario, const HuntOptions& options = {});
// The scenario's own contract, as GoogleTest expectations: status, class, phase, step, op, module and samples.
void expect_named(const Hunt& hunt, const scenarios::Expectation& expected);

}  // namespace nanhunt::testing_support
