// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/dump/dump_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "reports/json/json_values.h"
#include "src/core/text.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;
using namespace reports;

// "loss, gradient": the parts of a step that were bad.
json bad_json(std::uint32_t bad) {
  json out = json::array();
  for (unsigned kind = 0; kind <= static_cast<unsigned>(TensorRole::kOutput); ++kind) {
    if ((bad >> kind & 1u) != 0) out.push_back(tensor_role_name(static_cast<TensorRole>(kind)));
  }
  return out;
}

// Cells as JSON that every parser reads back.
class JsonCells final : public trace::Cells {
 public:
  void u32(std::string_view name, std::optional<std::uint32_t> value) override {
    if (name == "step") place.step = value;
    put(name, value ? json(*value) : json());
  }
  void i32(std::string_view name, std::optional<std::int32_t> value) override {
    put(name, value ? json(*value) : json());
  }
  void integer(std::string_view name, std::optional<std::int64_t> value) override {
    put(name, value ? json_integer(*value) : json());
  }
  void count(std::string_view name, std::optional<std::uint64_t> value) override {
    put(name, value ? json_count(*value) : json());
  }
  void seq(std::string_view name, std::uint64_t value) override { put(name, json_seq(value)); }
  void number(std::string_view name, std::optional<double> value) override {
    put(name, value ? json_number(*value) : json());
  }
  void number_or_nan(std::string_view name, double value) override { put(name, json_number_or_null(value)); }
  void flag(std::string_view name, bool value) override { put(name, value); }
  void text(std::string_view name, std::string_view value) override {
    if (name == "module" || name == "path") place.module = value;
    put(name, json_text_or_null(value));
  }
  void own_text(std::string_view name, std::string_view value) override { put(name, json_text(value)); }
  void parts(std::string_view name, std::uint32_t bad) override { put(name, bad_json(bad)); }
  void integers(std::string_view name, std::span<const std::int64_t> values) override {
    json list = json::array();
    for (const std::int64_t value : values) list.push_back(json_integer(value));
    put(name, std::move(list));
  }
  void integers(std::string_view name, std::span<const std::uint32_t> values) override {
    put(name, json(std::vector<std::uint32_t>(values.begin(), values.end())));
  }
  void shape(std::string_view name, const std::vector<std::int64_t>* sizes) override {
    put(name, sizes == nullptr ? json() : json_integers(*sizes));
  }
  void list(std::string_view name, std::size_t count, const ShowItem& item) override {
    json items = json::array();
    for (std::size_t i = 0; i < count; ++i) {
      JsonCells cells;
      item(cells, i);
      items.push_back(std::move(cells.row));
    }
    put(name, std::move(items));
  }

  json row = json::object();
  std::vector<std::string_view> names;  // in order
  RowPlace place;

 private:
  void put(std::string_view name, json value) {
    names.push_back(name);
    row[std::string(name)] = std::move(value);
  }
};

DumpKind dump_kind_of(const trace::RecordKind& kind) {
  JsonCells cells;
  kind.show(trace::one_row_of_each(), 0, TraceNames(), cells);
  const auto shows = [&](std::string_view name) { return std::ranges::find(cells.names, name) != cells.names.end(); };
  DumpKind out{&kind, kind.shown_name(), shows("step"), shows("module") || shows("path"), {}, {}};
  std::erase(cells.names, kind.table_cell);
  out.columns = trace::words_of(kind.line_cells);
  if (out.columns.empty()) {
    out.columns = cells.names;
    const auto put_first = [&](std::string_view name) {
      const auto at = std::ranges::find(out.columns, name);
      if (at != out.columns.end()) std::rotate(out.columns.begin(), at, at + 1);
    };
    if (!kind.first_cells.empty()) put_first(trace::words_of(kind.first_cells).front());
    put_first("step");
    const auto module = std::ranges::find(out.columns, "module"), op = std::ranges::find(out.columns, "op");
    if (module < op && op != out.columns.end()) std::iter_swap(module, op);
  }
  out.all_columns = out.columns;
  std::ranges::sort(cells.names);
  for (const std::string_view name : cells.names) {
    if (std::ranges::find(out.columns, name) == out.columns.end()) out.all_columns.push_back(name);
  }
  return out;
}

const std::vector<DumpKind>& kinds() {
  static const std::vector<DumpKind> kKinds = [] {
    std::vector<DumpKind> all;
    for (const trace::RecordKind* kind : trace::shown_kinds()) all.push_back(dump_kind_of(*kind));
    return all;
  }();
  return kKinds;
}

std::string cell(const json& value);

// "self=%12 fp16[32, 64] nan=3" for an argument, "name=value" pairs for anything else.
std::string object_cell(const json& object) {
  if (object.contains("role")) {
    std::string text = printable(object["slot"].get<std::string>());
    text += text.empty() ? "%" : "=%";
    text += object["value"].is_null() ? "?" : object["value"].dump();
    if (object["dtype"].is_string()) {
      text.append(" ").append(object["dtype"].get<std::string>()).append(cell(object["shape"]));
    }
    if (object["role"] != "read") text.append(" ").append(object["role"].get<std::string>());
    for (const char* count : {"nan", "pos_inf", "neg_inf"}) {
      if (object[count].is_null() || object[count] == 0) continue;
      text.append(" ").append(count).append("=").append(cell(object[count]));
    }
    return text;
  }
  if (object.contains("name")) return printable(object["name"].get<std::string>()) + "=" + cell(object["value"]);
  return printable(object["slot"].get<std::string>()) + "=" + cell(object["number"]);
}

std::string cell(const json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  if (value.is_object()) return object_cell(value);
  if (!value.is_array()) return dump_json(value, -1);
  std::string text = "[";
  for (std::size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "" : ", ") + cell(value[i]);
  return text + "]";
}

}  // namespace

void DumpKind::rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) const {
  const std::size_t count = record->count(batch);
  for (std::size_t at = 0; at < count; ++at) {
    JsonCells cells;
    record->show(batch, at, names, cells);
    if (!record->table_cell.empty()) cells.row.erase(std::string(record->table_cell));
    emit(cells.place, cells.row);
  }
}

std::span<const DumpKind> dump_kinds() { return kinds(); }

const DumpKind* find_dump_kind(std::string_view name) {
  const auto& all = kinds();
  const auto found = std::find_if(all.begin(), all.end(), [&](const DumpKind& kind) { return kind.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::string row_to_line(const DumpKind& kind, const json& row) {
  std::string line;
  for (const std::string_view column : kind.columns) {
    const json& value = row.at(std::string(column));
    if (value.is_null() || (value.is_array() && value.empty())) continue;
    if (!line.empty()) line += "  ";
    line += std::string(column) + "=" + cell(value);
  }
  return line;
}

}  // namespace nanhunt::cli
