// SPDX-License-Identifier: Apache-2.0
// One run of the campaign: drawn until a fault does harm, trained, watched, judged and scored.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/campaign/score.h"

namespace nanhunt::campaign {

inline constexpr int kMaxDraws = 40;

struct RunId {
  std::uint64_t campaign_seed = 1;
  bool healthy = false;
  std::uint32_t index = 0;
  std::string text() const;  // "fault-0017"
};
// "fault-17" or "healthy-3"; throws std::invalid_argument on anything else.
RunId parse_run_id(const std::string& text, std::uint64_t campaign_seed);

// A fault, and the run that it is planted in.
struct Drawn {
  Settings settings;
  Planted planted;
};
Drawn draw_fault(const Family& family, std::uint64_t run_seed);

struct LevelResult {
  std::string level;
  bool visible = true;  // sentinel: something that it watches was bad, or its audits could foresee it
  Answer answer;
  bool origin_right = false, class_right = false;
  std::string trace;  // kept where something was wrong; else empty
};

struct RunResult {
  RunId id;
  std::string family, variant, settings, harm;
  int harmless = 0, unintended = 0, failed = 0;  // draws before this one
  std::string failure;                           // what the last of the failed said
  bool planted = true;                           // false: no draw did harm as planned
  std::string expected_class, expected_place;
  std::vector<LevelResult> levels;
  std::map<std::string, bool> baselines;
  Drawn drawn;  // the one that did harm
};
nlohmann::json to_json(const RunResult& result);

struct RunnerOptions {
  std::string scratch;  // traces are written here, one folder a run
  bool keep_trace = false;
  std::string only_family;  // else families take turns
  std::vector<std::string> levels = {"ops", "sentinel"};
};
RunResult run_one(const RunId& id, const RunnerOptions& options);

// What is said of the run without its fault.
Answer judge_twin(const Drawn& drawn, const std::string& folder);

}  // namespace nanhunt::campaign
