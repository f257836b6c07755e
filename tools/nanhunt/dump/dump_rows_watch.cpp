// SPDX-License-Identifier: Apache-2.0
// Kinds of `nanhunt dump` that tell what the sentinel saw of each step, what was replayed, what changed unseen, what
// was tried to prove a cause, what passed between ranks, and what a GPU ran.
#include <optional>

#include "src/trace/health_norms.h"
#include "tools/nanhunt/dump/dump_kinds.h"

namespace nanhunt::cli {
namespace {

using nlohmann::json;
using namespace reports;

// "loss, gradient, audit": the parts of a step that were bad.
json bad_json(std::uint32_t bad) {
  json out = json::array();
  for (unsigned kind = 0; kind <= static_cast<unsigned>(MarkKind::kLabel); ++kind) {
    if ((bad >> kind & 1u) != 0) out.push_back(mark_kind_name(static_cast<MarkKind>(kind)));
  }
  if ((bad & kHealthAudit) != 0) out.push_back("audit");
  if ((bad & kHealthChanged) != 0) out.push_back("changed");
  return out;
}

json norm_json(const std::optional<double>& norm) { return norm ? json_number(*norm) : json(); }  // null: not measured

void health_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const HealthRecord& row : batch.health) {
    emit({row.step, {}}, {{"seq", json_seq(row.seq)},
                          {"step", row.step},
                          {"bad", bad_json(row.bad)},
                          {"bad_tensors", row.bad_tensors},
                          {"first_bad", name_json(names, row.first_bad)},
                          {"gradient_norm", norm_json(trace::measured_gradient_norm(row))},
                          {"weight_norm", norm_json(trace::measured_weight_norm(row))}});
  }
}

void norm_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const NormRecord& row : batch.norms) {
    emit({row.step, names.text(row.path)}, {{"seq", json_seq(row.seq)},
                                            {"step", row.step},
                                            {"mark", mark_kind_name(row.kind)},
                                            {"path", name_json(names, row.path)},
                                            {"norm", json_number(row.norm)},
                                            {"amax", json_number(row.amax)}});
  }
}

void replay_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const ReplayRecord& row : batch.replays) {
    emit({row.step, {}}, {{"seq", json_seq(row.seq)},
                          {"step", row.step},
                          {"trigger", replay_trigger_name(row.trigger)},
                          {"result", replay_result_name(row.result)},
                          {"text", name_json(names, row.text)}});
  }
}

void changed_rows(const RecordBatch& batch, const TraceNames&, const EmitRow& emit) {
  for (const ChangedRecord& row : batch.changed) {
    emit({row.step, {}}, {{"seq", json_seq(row.seq)},
                          {"step", row.step},
                          {"before", id_json(row.before)},
                          {"after", id_json(row.after)},
                          {"since_seq", json_seq(row.since_seq)},
                          {"since_step", row.since_step},
                          {"opaque", row.opaque}});
  }
}

// Step and module of the op that a row is about, where the trace still holds it.
RowPlace place_of(std::uint64_t seq, std::uint32_t step, const TraceNames& names) {
  const OpBrief* op = names.op(seq);
  return {step, op == nullptr ? std::string_view() : std::string_view(names.text(op->module))};
}

void probe_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const ProbeRecord& row : batch.probes) {
    const OpBrief* op = names.op(row.seq);
    emit(place_of(row.seq, row.step, names), {{"seq", json_seq(row.seq)},
                                              {"step", row.step},
                                              {"op", op == nullptr ? json() : name_json(names, op->op)},
                                              {"module", op == nullptr ? json() : name_json(names, op->module)},
                                              {"mode", probe_mode_name(row.mode)},
                                              {"dtype", dtype_name(row.dtype)},
                                              {"ops", row.ops},
                                              {"ran", row.ran},
                                              {"nan", json_integer(row.nan)},
                                              {"pos_inf", json_integer(row.pos_inf)},
                                              {"neg_inf", json_integer(row.neg_inf)},
                                              {"flat_index", json_integer(row.flat_index)},
                                              {"number", json_number(row.number)},
                                              {"text", name_json(names, row.text)}});
  }
}

void capture_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const CaptureRecord& row : batch.captures) {
    const OpBrief* op = names.op(row.seq);
    emit(place_of(row.seq, row.step, names), {{"seq", json_seq(row.seq)},
                                              {"step", row.step},
                                              {"op", op == nullptr ? json() : name_json(names, op->op)},
                                              {"module", op == nullptr ? json() : name_json(names, op->module)},
                                              {"file", name_json(names, row.file)},
                                              {"bytes", json_count(row.bytes)}});
  }
}

void note_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const NoteRecord& row : batch.notes) {
    emit(place_of(row.seq, row.step, names), {{"seq", json_seq(row.seq)},
                                              {"step", row.step},
                                              {"text", name_json(names, row.text)},
                                              {"count", json_count(row.count)}});
  }
}

void collective_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const CollectiveRecord& row : batch.collectives) {
    const OpBrief* op = names.op(row.seq);
    emit(place_of(row.seq, row.step, names), {{"seq", json_seq(row.seq)},
                                              {"step", row.step},
                                              {"op", op == nullptr ? json() : name_json(names, op->op)},
                                              {"module", op == nullptr ? json() : name_json(names, op->module)},
                                              {"group", name_json(names, row.group)},
                                              {"call", json_count(row.call)},
                                              {"collective", collective_kind_name(row.kind)},
                                              {"reduction", reduction_name(row.reduction)},
                                              {"peer", row.peer < 0 ? json() : json(row.peer)},
                                              {"ranks", row.ranks}});
  }
}

void kernel_rows(const RecordBatch& batch, const TraceNames& names, const EmitRow& emit) {
  for (const KernelRecord& row : batch.kernels) {
    const OpBrief* op = names.op(row.seq);
    emit(place_of(row.seq, row.step, names), {{"seq", json_seq(row.seq)},
                                              {"step", row.step},
                                              {"op", op == nullptr ? json() : name_json(names, op->op)},
                                              {"module", op == nullptr ? json() : name_json(names, op->module)},
                                              {"name", name_json(names, row.name)},
                                              {"own", row.own},
                                              {"count", json_count(row.count)},
                                              {"timed", json_count(row.timed)},
                                              {"duration_ns", json_integer(row.duration_ns)}});
  }
}

}  // namespace

std::vector<DumpKind> watch_kinds() {
  return {
      {"health",
       true,
       false,
       {"step", "seq", "bad", "bad_tensors", "first_bad", "gradient_norm", "weight_norm"},
       health_rows},
      {"norms", true, true, {"step", "seq", "mark", "path", "norm", "amax"}, norm_rows},
      {"replays", true, false, {"step", "seq", "trigger", "result", "text"}, replay_rows},
      {"changed", true, false, {"step", "seq", "before", "after", "since_seq", "since_step", "opaque"}, changed_rows},
      {"probes",
       true,
       true,
       {"step", "seq", "op", "module", "mode", "dtype", "ops", "ran", "nan", "pos_inf", "neg_inf", "number", "text"},
       probe_rows},
      {"captures", true, true, {"step", "seq", "op", "module", "file", "bytes"}, capture_rows},
      {"notes", true, false, {"step", "seq", "text", "count"}, note_rows},
      {"collectives",
       true,
       true,
       {"step", "seq", "op", "module", "group", "call", "collective", "reduction", "peer", "ranks"},
       collective_rows},
      {"kernels",
       true,
       true,
       {"step", "seq", "op", "module", "name", "own", "count", "timed", "duration_ns"},
       kernel_rows},
  };
}

}  // namespace nanhunt::cli
