// SPDX-License-Identifier: Apache-2.0
#include "reports/json/json_run.h"

#include <nlohmann/json.hpp>

#include "reports/json/json_values.h"

namespace nanhunt::reports {
namespace {

using nlohmann::json;

constexpr std::size_t kJsonOptions = 1024;

json pairs_to_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  json out = json::array();
  for (const auto& [name, value] : pairs) {
    if (out.size() == kJsonOptions) break;
    out.push_back({{"name", json_text(name)}, {"value", json_text(value)}});
  }
  return out;
}

}  // namespace

json health_to_json(const TraceHealth& h) {
  return {{"clean_end", h.clean_end},
          {"segments", json_count(h.segments)},
          {"chunks", json_count(h.chunks)},
          {"rows", json_count(h.rows)},
          {"bytes", json_count(h.bytes)},
          {"chunks_lost", json_count(h.chunks_lost)},
          {"rows_lost", json_count(h.rows_lost)},
          {"bytes_skipped", json_count(h.bytes_skipped)},
          {"unknown_chunks", json_count(h.unknown_chunks)},
          {"problems", json_texts(h.problems)}};
}

json run_info_to_json(const RunInfo& info) {
  return {{"rank", info.rank},
          {"attempt", info.attempt},
          {"world_size", info.world_size},
          {"command", json_texts(info.command)},
          {"nanhunt_version", json_text_or_null(info.nanhunt_version)},
          {"framework", json_text_or_null(info.framework)},
          {"device", json_text_or_null(info.device)},
          {"level", json_text_or_null(info.level)},
          {"scenario", json_text_or_null(info.scenario)},
          {"dtypes", json_texts(info.dtypes)},
          {"options", pairs_to_json(info.options)},
          {"packages", pairs_to_json(info.packages)},
          {"commit", json_text_or_null(info.commit)},
          {"tree", json_text_or_null(info.tree)},
          // These differ between equal runs.
          {"volatile",
           {{"started", json_text_or_null(info.started)},
            {"host", json_text_or_null(info.host)},
            {"pid", info.pid == 0 ? json() : json_integer(info.pid)}}}};
}

json rank_to_json(const RankSummary& rank) {
  json out = run_info_to_json(rank.info);
  out["rank"] = rank.rank;
  out["attempt"] = rank.attempt;
  out["health"] = health_to_json(rank.health);
  return out;
}

}  // namespace nanhunt::reports
