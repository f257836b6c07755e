// SPDX-License-Identifier: Apache-2.0
// The records of a trace as tables, with names resolved: the kinds of trace::shown_kinds(), each with the cells that it
// shows.
#pragma once

#include <functional>

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

void declare_table(const trace::RecordKind& kind, Table& table);
// Adds the batch's rows of this kind; `added` is called after each.
void add_rows(const trace::RecordKind& kind, const RowContext& context, Table& table,
              const std::function<void()>& added);

}  // namespace nanhunt::c_api
