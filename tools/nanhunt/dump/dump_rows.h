// SPDX-License-Identifier: Apache-2.0
// One kind of record as rows for `nanhunt dump`: JSON with names resolved, and the order of its columns for people.
// What a kind shows is said where it is declared (src/trace/records).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "nanhunt/trace.h"
#include "src/trace/cells.h"

namespace nanhunt::cli {

using trace::TraceNames;

// Where a row belongs, for --step and --module.
struct RowPlace {
  std::optional<std::uint32_t> step;
  std::string_view module;
};
using EmitRow = std::function<void(const RowPlace& place, const nlohmann::json& row)>;

struct DumpKind {
  const trace::RecordKind* record;
  std::string_view name;
  bool has_step, has_module;
  std::vector<std::string_view> columns;      // for people, in this order
  std::vector<std::string_view> all_columns;  // these, then the others by name

  void rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) const;
};

std::span<const DumpKind> dump_kinds();
const DumpKind* find_dump_kind(std::string_view name);  // nullptr: none

// One line for people: column=value, what is null left out.
std::string row_to_line(const DumpKind& kind, const nlohmann::json& row);

}  // namespace nanhunt::cli
