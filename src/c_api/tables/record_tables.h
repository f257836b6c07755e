// SPDX-License-Identifier: Apache-2.0
// The records of a trace as tables, with names resolved: the kinds of trace::shown_kinds(), each with the cells that it
// shows, and tables that are made of them.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "nanhunt/trace.h"
#include "src/c_api/tables/arrow_table.h"
#include "src/trace/record_kind.h"
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
  const trace::RecordKind* rows = nullptr;  // one row of the table for each of these, if it is wanted
  std::string_view first_cells = "";
  void (*show)(const RecordBatch&, std::size_t row, const trace::TraceNames&, trace::Cells&) = nullptr;
  bool (*is_wanted)(const RecordBatch&, std::size_t row, const trace::TraceNames&) = nullptr;  // nullptr: all are
};
std::span<const TableKind> table_kinds();
const TableKind* find_table_kind(std::string_view name);  // nullptr: none

void declare_table(const TableKind& kind, Table& table);
// Adds the batch's rows of this kind; `added` is called after each.
void add_rows(const TableKind& kind, const RowContext& context, Table& table, const std::function<void()>& added);

}  // namespace nanhunt::c_api
