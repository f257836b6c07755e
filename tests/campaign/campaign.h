// SPDX-License-Identifier: Apache-2.0
// Many runs: on several threads, each kept when it has ended, so that a campaign may span sittings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace nanhunt::campaign {

struct CampaignOptions {
  std::uint32_t faults = 0, healthy = 0;
  std::uint64_t seed = 1;
  unsigned jobs = 2;
  std::string work;         // finished runs and kept traces
  std::string only_family;
  std::string level = "both";  // or "ops", "sentinel"
  std::uint32_t max_kept_traces = 50;
  std::function<void(std::uint32_t done, std::uint32_t all)> on_progress = {};
};

// Every run, finished now or in an earlier sitting, in order.
std::vector<nlohmann::json> run_campaign(const CampaignOptions& options);

// The report: figures, per family and per level, baselines, misses.
nlohmann::json summarize(const std::vector<nlohmann::json>& runs, std::uint64_t seed);
// The tables of README.md.
std::string tables_of(const nlohmann::json& summary);
std::string family_table();

}  // namespace nanhunt::campaign
