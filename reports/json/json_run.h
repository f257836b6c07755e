// SPDX-License-Identifier: Apache-2.0
// What ran and how much of its trace is readable, as report.json and `--json` have it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nanhunt/analyzer.h"

namespace nanhunt::reports {

nlohmann::json health_to_json(const TraceHealth& health);
nlohmann::json run_info_to_json(const RunInfo& info);  // rank and attempt as in run.json
nlohmann::json rank_to_json(const RankSummary& rank);  // both together

}  // namespace nanhunt::reports
