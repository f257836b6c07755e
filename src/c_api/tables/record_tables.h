// SPDX-License-Identifier: Apache-2.0
// The kinds of records of a trace as tables, with names resolved. A kind is one entry of the list in record_tables.cpp;
// kinds and their names are those of `nanhunt dump`.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "nanhunt/trace.h"
#include "src/c_api/tables/arrow_table.h"
#include "src/trace/trace_names.h"

namespace nanhunt::c_api {

// What a row needs besides its record.
struct RowContext {
  const RunInfo& run;
  const trace::TraceNames& names;
  const RecordBatch& batch;
};

struct TableKind {
  std::string_view name;
  void (*declare)(Table& table);
  // Adds the batch's rows of this kind; `added` is called after each.
  void (*add)(const RowContext& context, Table& table, const std::function<void()>& added);
};

std::span<const TableKind> table_kinds();
const TableKind* find_table_kind(std::string_view name);  // nullptr: none

}  // namespace nanhunt::c_api
