// SPDX-License-Identifier: Apache-2.0
#include "tools/nanhunt/dump/dump_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "reports/json/json_values.h"
#include "src/core/text.h"
#include "tools/nanhunt/dump/dump_kinds.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;
using namespace reports;

void add_layout(json& row, const TraceNames& names, LayoutId id) {
  const LayoutRecord* layout = names.layout(id);
  row["dtype"] = layout == nullptr ? json() : json(dtype_name(layout->dtype));
  row["shape"] = layout == nullptr ? json() : json_integers(layout->sizes);
}

// What goes in or comes out of an op. Statistics are those of the whole value.
json arg_json(const OpArg& arg, const TraceNames& names) {
  json out = {{"slot", json_text(names.text(arg.slot))},
              {"value", id_json(arg.value)},
              {"role", arg_role_name(arg.role)}};
  const ValueBrief* value = names.value(arg.value);
  add_layout(out, names, value == nullptr ? 0 : value->layout);
  const bool counted = value != nullptr && value->has_stats;
  out["nan"] = counted ? json_integer(value->nan) : json();
  out["pos_inf"] = counted ? json_integer(value->pos_inf) : json();
  out["neg_inf"] = counted ? json_integer(value->neg_inf) : json();
  return out;
}

// A range of `list` as an op has it; a range that does not fit is empty.
template <typename T>
std::span<const T> range_of(const std::vector<T>& list, std::uint32_t first, std::uint32_t count) {
  if (first > list.size() || count > list.size() - first) return {};
  return std::span<const T>(list).subspan(first, count);
}

void op_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const OpRecord& op : batch.ops) {
    json inputs = json::array(), outputs = json::array(), scalars = json::array();
    for (const OpArg& arg : range_of(batch.inputs, op.first_input, op.input_count))
      inputs.push_back(arg_json(arg, names));
    for (const OpArg& arg : range_of(batch.outputs, op.first_output, op.output_count))
      outputs.push_back(arg_json(arg, names));
    for (const ScalarArg& arg : range_of(batch.scalars, op.first_scalar, op.scalar_count)) {
      scalars.push_back({{"name", json_text(names.text(arg.name))}, {"value", json_number(arg.value)}});
    }
    emit({op.step, names.text(op.module)}, {{"seq", json_seq(op.seq)},
                                            {"step", op.step},
                                            {"micro_batch", op.micro_batch},
                                            {"phase", phase_name(op.phase)},
                                            {"module", name_json(names, op.module)},
                                            {"op", name_json(names, op.op)},
                                            {"call_site", name_json(names, op.call_site)},
                                            {"compute_dtype", dtype_name(op.compute_dtype)},
                                            {"inputs", std::move(inputs)},
                                            {"outputs", std::move(outputs)},
                                            {"scalars", std::move(scalars)}});
  }
}

void add_stats(json& row, const ValueRecord& value) {
  const TensorStats& s = value.stats;
  const bool counts = value.has_stats && s.level >= StatsLevel::kCounts;
  const bool sums = value.has_stats && s.level >= StatsLevel::kSums;
  const auto put = [&](const char* key, bool known, auto to_json, auto number) {
    row[key] = known ? to_json(number) : json();
  };
  put("numel", value.has_stats, json_integer, s.numel);
  put("first_nonfinite", value.has_stats && s.any_nonfinite, json_integer, s.first_nonfinite);
  put("nan", counts, json_integer, s.nan);
  put("pos_inf", counts, json_integer, s.pos_inf);
  put("neg_inf", counts, json_integer, s.neg_inf);
  put("zero", counts, json_integer, s.zero);
  put("subnormal", counts, json_integer, s.subnormal);
  put("amin_nonzero", counts && s.has_nonzero(), json_number, s.amin_nonzero);
  put("amax", counts && s.has_finite(), json_number, s.amax);
  put("min", counts && s.has_finite(), json_number, s.min);
  put("max", counts && s.has_finite(), json_number, s.max);
  put("sum", sums, json_number, s.sum);
  put("sum_sq", sums, json_number, s.sum_sq);
  put("flushed", value.flushed >= 0, json_integer, value.flushed);
}

void value_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const ValueRecord& value : batch.values) {
    const OpBrief* op = value.producer == kNoSeq ? nullptr : names.op(value.producer);
    json row = {{"id", json_count(value.id)},
                {"storage", json_count(value.storage)},
                {"version", value.version},
                {"offset", json_integer(value.offset)},
                {"base", id_json(value.base)},
                {"producer", json_seq(value.producer)},
                {"step", op == nullptr ? json() : json(op->step)},
                {"module", op == nullptr ? json() : name_json(names, op->module)},
                {"op", op == nullptr ? json() : name_json(names, op->op)}};
    add_layout(row, names, value.layout);
    add_stats(row, value);
    RowPlace place;
    if (op != nullptr) place = {op->step, names.text(op->module)};
    emit(place, row);
  }
}

void mark_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const MarkRecord& mark : batch.marks) {
    emit({mark.step, names.text(mark.path)}, {{"seq", json_seq(mark.seq)},
                                              {"step", mark.step},
                                              {"micro_batch", mark.micro_batch},
                                              {"mark", mark_kind_name(mark.kind)},
                                              {"path", name_json(names, mark.path)},
                                              {"value", id_json(mark.value)}});
  }
}

void step_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const StepRecord& step : batch.steps) {
    emit({step.step, {}}, {{"step", step.step},
                           {"skipped", step.skipped},
                           {"loss", json_number(step.loss)},
                           {"lr", json_number_or_null(step.lr)},
                           {"scale", json_number_or_null(step.scale)},
                           {"end_seq", json_seq(step.end_seq)},
                           {"wall_ns", json_integer(step.wall_ns)}});
  }
}

void sample_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const SampleIdsRecord& row : batch.sample_ids) {
    emit({row.step, {}},
         {{"step", row.step}, {"micro_batch", row.micro_batch}, {"sample_ids", json_integers(row.sample_ids)}});
  }
}

void evidence_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const EvidenceRecord& e : batch.evidence) {
    const OpBrief* op = names.op(e.seq);
    json operands = json::array();
    for (const Operand& operand : e.operands) {
      operands.push_back({{"slot", json_text(names.text(operand.slot))},
                          {"value", id_json(operand.value)},
                          {"flat_index", json_integer(operand.flat_index)},
                          {"number", json_number(operand.number)}});
    }
    RowPlace place;
    if (op != nullptr) place = {op->step, names.text(op->module)};
    emit(place, {{"seq", json_seq(e.seq)},
                 {"step", op == nullptr ? json() : json(op->step)},
                 {"module", op == nullptr ? json() : name_json(names, op->module)},
                 {"op", op == nullptr ? json() : name_json(names, op->op)},
                 {"value", id_json(e.value)},
                 {"flat_index", json_integer(e.flat_index)},
                 {"number", json_number(e.number)},
                 {"operands", std::move(operands)}});
  }
}

std::vector<DumpKind> graph_kinds() {
  return {
      {"ops",
       true,
       true,
       {"step", "seq", "phase", "module", "op", "inputs", "scalars", "outputs", "call_site"},
       op_rows},
      {"values",
       true,
       true,
       {"id", "producer", "step", "op", "module", "dtype", "shape", "nan", "pos_inf", "neg_inf", "zero", "subnormal",
        "amin_nonzero", "min", "max", "flushed", "storage", "version"},
       value_rows},
      {"marks", true, true, {"step", "seq", "mark", "path", "value"}, mark_rows},
      {"steps", true, false, {"step", "skipped", "loss", "lr", "scale", "end_seq"}, step_rows},
      {"samples", true, false, {"step", "micro_batch", "sample_ids"}, sample_rows},
      {"evidence",
       true,
       true,
       {"step", "seq", "op", "module", "value", "flat_index", "number", "operands"},
       evidence_rows},
  };
}

const std::vector<DumpKind>& kinds() {
  static const std::vector<DumpKind> kKinds = [] {
    std::vector<DumpKind> all = graph_kinds();
    for (auto* more : {run_kinds, watch_kinds}) {
      for (DumpKind& kind : more()) all.push_back(std::move(kind));
    }
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
