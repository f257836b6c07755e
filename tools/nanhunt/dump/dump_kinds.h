// SPDX-License-Identifier: Apache-2.0
// What the files of dump kinds share: dump_rows.cpp (the graph of values), dump_rows_run.cpp (the run and its records'
// fate), dump_rows_watch.cpp (what the sentinel saw, replays and proofs).
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "reports/json/json_values.h"
#include "tools/nanhunt/dump/dump_rows.h"

namespace nanhunt::cli {

std::vector<DumpKind> run_kinds();
std::vector<DumpKind> watch_kinds();

inline nlohmann::json name_json(const TraceNames& names, StringId id) {
  return reports::json_text_or_null(names.text(id));
}
inline nlohmann::json id_json(std::uint64_t id) { return id == 0 ? nlohmann::json() : reports::json_count(id); }

}  // namespace nanhunt::cli
