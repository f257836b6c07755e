// SPDX-License-Identifier: Apache-2.0
#include "src/c_api/tables/record_tables.h"

#include <optional>
#include <string_view>
#include <vector>

#include "src/trace/bad_ops.h"
#include "src/trace/cells.h"

namespace nanhunt::c_api {
namespace {

// Cells as columns: numbers stay numbers, and what is not there is null.
class RowCells final : public trace::Cells {
 public:
  explicit RowCells(Row& row) : row_(row) {}

  void u32(std::string_view name, std::optional<std::uint32_t> value) override { row_.cell(name, value); }
  void i32(std::string_view name, std::optional<std::int32_t> value) override { row_.cell(name, value); }
  void integer(std::string_view name, std::optional<std::int64_t> value) override { row_.cell(name, value); }
  void count(std::string_view name, std::optional<std::uint64_t> value) override { row_.cell(name, value); }
  void seq(std::string_view name, std::uint64_t value) override {
    row_.cell(name, value == kNoSeq ? std::nullopt : std::optional(value));
  }
  void number(std::string_view name, std::optional<double> value) override { row_.cell(name, value); }
  void number_or_nan(std::string_view name, double value) override { row_.cell(name, value); }
  void flag(std::string_view name, bool value) override { row_.cell(name, value); }
  void text(std::string_view name, std::string_view value) override { row_.cell(name, value); }
  void own_text(std::string_view name, std::string_view value) override { row_.cell(name, value); }
  void parts(std::string_view name, std::uint32_t bad) override { row_.cell(name, bad); }
  void integers(std::string_view name, std::span<const std::int64_t> values) override { row_.integers(name, values); }
  void integers(std::string_view name, std::span<const std::uint32_t> values) override { row_.integers(name, values); }
  void shape(std::string_view name, const std::vector<std::int64_t>* sizes) override {
    integers(name, sizes == nullptr ? std::span<const std::int64_t>() : *sizes);
  }
  void list(std::string_view name, std::size_t count, const ShowItem& item) override {
    row_.list(name, count, [&](Row& row, std::size_t i) {
      RowCells cells(row);
      item(cells, i);
    });
  }

 private:
  Row& row_;
};

void whole_row(Row& row, const TableKind& kind, const RowContext& context, std::size_t at) {
  row.cell("rank", context.run.rank);
  row.cell("attempt", context.run.attempt);
  RowCells cells(row);
  kind.show(context.batch, at, context.names, cells);
}

}  // namespace

std::span<const TableKind> table_kinds() {
  static const std::vector<TableKind> kKinds = [] {
    std::vector<TableKind> kinds;
    for (const trace::RecordKind* kind : trace::shown_kinds()) {
      kinds.push_back({kind->shown_name(), kind, kind->first_cells, kind->show});
    }
    kinds.push_back({"bad_ops", trace::find_shown_kind("ops"), "", trace::show_bad_op, trace::is_bad_op});
    return kinds;
  }();
  return kKinds;
}

const TableKind* find_table_kind(std::string_view name) {
  for (const TableKind& kind : table_kinds()) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

void declare_table(const TableKind& kind, Table& table) {
  const RunInfo run;
  const trace::TraceNames names;
  std::vector<std::string_view> first = {"rank", "attempt"};
  for (const std::string_view cell : trace::words_of(kind.first_cells)) first.push_back(cell);
  table.declare([&](Row& row) { whole_row(row, kind, {run, names, trace::one_row_of_each()}, 0); }, first);
}

void add_rows(const TableKind& kind, const RowContext& context, Table& table, const std::function<void()>& added) {
  const std::size_t rows = kind.rows->count(context.batch);
  for (std::size_t at = 0; at < rows; ++at) {
    if (kind.is_wanted != nullptr && !kind.is_wanted(context.batch, at, context.names)) continue;
    table.add([&](Row& row) { whole_row(row, kind, context, at); });
    added();
  }
}

}  // namespace nanhunt::c_api
